"""Who may import whom, as docs/ARCHITECTURE.md says: packages, and rooms in them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
NODE = {"cgpu_node", "cgpu_native", "cgpu_env"}
# Package: where it is, and whom it may import. None of the programs imports another's package.
PACKAGES = {
    "cgpu_env": (".", set[str]()),
    "cgpu_native": ("native", {"cgpu_env"}),
    "cgpu_shim": ("shim", set[str]()),
    "cgpu_node": ("node", {"cgpu_native", "cgpu_env"}),
    "cgpu_hook": ("hook", {*NODE, "cgpu_shim"}),
    "cgpu_server": ("server", {*NODE, "cgpu_shim"}),
    "cgpu_install": ("cli", NODE),
    "cgpu_upgrade": ("cli", {*NODE, "cgpu_install"}),
    "cgpu_doctor": ("cli", {*NODE, "cgpu_shim", "cgpu_install", "cgpu_upgrade"}),
    "cgpu_cli": (
        "cli",
        {*NODE, "cgpu_shim", "cgpu_install", "cgpu_upgrade", "cgpu_doctor", "cgpu_sim"},
    ),
    "cgpu_entry": ("cli", {"cgpu_cli", "cgpu_k8s", "cgpu_node", "cgpu_server"}),
    "cgpu_k8s": ("k8s", NODE),
    "cgpu_sim": ("tests/sim", {"cgpu_env"}),
}
# The doors between two of them: `cgpu plan` shows what the hook would do, and `cgpu completion`
# describes the options of cgpud.
DOORS = {"cgpu_cli": {"cgpu_hook.preview", "cgpu_hook.plan", "cgpu_server.main"}}
# What is not installed, and so may be imported by nothing that is; whom these may import of them.
TESTS = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()} - {"sim"}
UNINSTALLED = {*TESTS, "tests", "bench", "deploy"}
MEASURING = {"bench": {"bench", "lab", "gpu"}, "deploy": {"deploy", "lab"}}
# Calls that import what a string names. Only the starter of our modules takes any name.
BY_NAME = {"import_module", "__import__", "find_spec", "run_module", "resolve_name"}
STARTER = ROOT / "node/cgpu_node/bootstrap.py"
IN_TEXT = re.compile(r"(?:^|[;:])\s*(?:from|import)\s+([A-Za-z_][\w., \t]*)", re.MULTILINE)
# Rooms of a package, and its own files, each of which may import those before it.
ROOMS: dict[str, tuple[set[str], ...]] = {
    "cgpu_node": (
        {
            "paths",
            "trust",
            "sealed",
            "lockfile",
            "jsontext",
            "code_bundle",
            "bootstrap",
            "installation",
            "allocation_annotation",
            "podspecs",
            "exclusive",
        },
        {"image"},
        {"settings"},
        {"facts"},
        {"shares"},
        {"view"},
        {"client", "server", "accounts"},
    ),
    "cgpu_cli": (
        {"answer", "namespaces"},
        {"running"},
        {"show"},
        {"smi"},
        {"demo"},
        {"commands"},
        {"main", "run"},
    ),
    "cgpu_server": (
        {"journal", "service"},
        {"state"},
        {"audit"},
        {"tree"},
        {"metrics"},
        {"control"},
        {"daemon"},
        {"serve"},
        {"main"},
    ),
    "cgpu_k8s": (
        {"names", "answers"},
        {"objects"},
        {"apiserver"},
        {"kubelet", "scheduler", "admission"},
        {"node", "inspect"},
        {"dra"},
        {"agent", "dra_driver", "extender", "guard"},
    ),
}
# Rooms and programs that only these import: each is about another counterpart, or is one program.
IMPORTERS: dict[str, dict[str, set[str]]] = {
    "cgpu_k8s": {
        "kubelet": {"node", "agent", "dra", "dra_driver"},
        "scheduler": {"inspect", "extender"},
        "admission": {"guard"},
        "node": {"agent", "dra", "dra_driver"},
        "dra": {"dra_driver", "guard"},
        "inspect": set(),
        "agent": set(),
        "dra_driver": set(),
        "extender": set(),
        "guard": set(),
    }
}
# Rooms of the tests' helper modules, each of which may import those before it.
LAB = (
    "runs",
    "calls",
    "driver",
    "containers",
    "machine",
    "kubernetes",
    "cluster",
    "shares",
    "products",
    "worlds",
)
# Circles of files that nothing can part: missing facts are collected by a module that reads them
# back, and one command of the table describes the table.
CIRCLES = {
    frozenset({"cgpu_node.facts.node", "cgpu_node.facts.discovery"}),
    frozenset({"cgpu_cli.commands.commands", "cgpu_cli.commands.completion"}),
}


def called(node: ast.Call) -> str:
    """The last part of the name of what is called."""
    function = node.func
    name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
    return str(name)


def hidden(node: ast.AST) -> set[str]:
    """Names that are imported by a string: given to a call, or in a program that it holds."""
    if isinstance(node, ast.Call) and called(node) in BY_NAME:
        named = node.args[0] if node.args else node
        begin = named.values[0] if isinstance(named, ast.JoinedStr) else named
        return {str(begin.value) if isinstance(begin, ast.Constant) else "any"}
    if isinstance(node, ast.ImportFrom):
        renamed = any(alias.asname and alias.name in BY_NAME for alias in node.names)
        return {"any"} if renamed else set()
    if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
        text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
        lists = [names.split(",") for names in IN_TEXT.findall(text)]
        return {name.split()[0] for names in lists for name in names if name.split()}
    return set()


def imported(source: str) -> set[str]:
    """Names that a module imports, wherever in it: modules, and what it takes from them."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        names |= hidden(node)
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def tops(names: set[str]) -> set[str]:
    """The packages of dotted names."""
    return {name.partition(".")[0] for name in names}


def ours(path: Path) -> set[str]:
    """What a file imports of ours."""
    names = imported(path.read_text(encoding="utf-8"))
    return {name for name in names if name.startswith("cgpu_")}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_what_is_below_it(package: str) -> None:
    folder, below = PACKAGES[package]
    doors = tuple(DOORS.get(package, ()))
    for path in (ROOT / folder / package).rglob("*.py"):
        names = {name for name in ours(path) if not doors or not name.startswith(doors)}
        names -= {"cgpu_hook.preview"} if doors else set()
        assert tops(names) <= below | {package}, path


@pytest.mark.parametrize("package", PACKAGES)
def test_what_is_installed_imports_no_test_and_no_measurement(package: str) -> None:
    for path in (ROOT / PACKAGES[package][0] / package).rglob("*.py"):
        names = imported(path.read_text(encoding="utf-8"))
        assert not tops(names) & UNINSTALLED, path
        assert "any" not in names or path == STARTER, f"{path} imports what no test can see"


@pytest.mark.parametrize("folder", MEASURING)
def test_measurements_and_deployment_import_no_tests(folder: str) -> None:
    installed = {*(ROOT / folder).rglob("_build/**/*.py")}  # by a benchmark
    for path in {*(ROOT / folder).rglob("*.py")} - installed:
        names = tops(imported(path.read_text(encoding="utf-8")))
        assert names & UNINSTALLED <= MEASURING[folder], path


def rank(name: str) -> int:
    """Which room of its package a dotted name belongs to."""
    package, room = name.split(".")[:2]
    [place] = [n for n, rooms in enumerate(ROOMS[package]) if room in rooms]
    return place


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_of_a_package_import_in_one_direction(package: str) -> None:
    folder = ROOT / PACKAGES[package][0] / package
    for path in folder.rglob("*.py"):
        dotted = ".".join(path.relative_to(folder.parent).with_suffix("").parts)
        if path.name == "__init__.py":
            assert not ours(path)
            continue
        for name in ours(path):
            if name.startswith(f"{package}."):
                assert rank(name) <= rank(dotted), f"{path} imports {name}"
                own, other = dotted.split(".")[1], name.split(".")[1]
                importers = IMPORTERS.get(package, {}).get(other, {own})
                assert own in {other, *importers}, f"{path} imports {name}"


def test_helper_modules_have_their_rooms_and_import_in_one_direction() -> None:
    assert [path.name for path in (ROOT / "tests").glob("*.py")] == ["conftest.py"]
    assert {path.name for path in (ROOT / "tests/lab").iterdir() if path.is_dir()} - {
        "__pycache__"
    } == set(LAB)
    for path in (ROOT / "tests/lab").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        rooms = {name.split(".")[1] for name in imported(text) if name.startswith("lab.")}
        allowed = LAB[: LAB.index(path.parent.name) + 1] if path.parent.name in LAB else ()
        assert rooms <= set(allowed), path
        assert not tops(imported(text)) & {"bench", "gpu", "faults", "fuzz"}, path


def modules() -> dict[str, set[str]]:
    """Our modules, and those among them that each imports."""
    files = {}
    for package, (folder, _) in PACKAGES.items():
        for path in (ROOT / folder / package).rglob("*.py"):
            dotted = ".".join(path.relative_to(ROOT / folder).with_suffix("").parts)
            files[dotted.removesuffix(".__init__")] = ours(path)
    return {
        name: {each if each in files else each.rpartition(".")[0] for each in names}
        & files.keys() - {name}
        for name, names in files.items()
    }


def reached(name: str, imports: dict[str, set[str]]) -> set[str]:
    """What a module imports, and what that imports, and so on."""
    found: set[str] = set()
    ahead = [*imports[name]]
    while ahead:
        each = ahead.pop()
        if each not in found:
            found.add(each)
            ahead += imports[each]
    return found


def test_files_import_each_other_in_circles_only_where_nothing_can_part_them() -> None:
    imports = modules()
    reach = {name: reached(name, imports) for name in imports}
    circles = {
        frozenset(each for each in names if name in reach[each])
        for name, names in reach.items()
        if name in names
    }
    assert circles == CIRCLES


def test_what_chooses_gpus_imports_no_module_that_reads_a_file() -> None:
    imports = modules()
    pure = {name for name in imports if name.startswith("cgpu_k8s.objects")}
    pure |= {
        f"cgpu_k8s.scheduler.{name}"
        for name in ("allocation", "cache", "placing", "topology", "gangs", "groups", "units")
    }
    pure |= {
        f"cgpu_k8s.scheduler.policies.{name}"
        for name in ("group_units", "policy_cache", "unit_choices", "pod_writes", "policy_status")
    }
    below = set().union(*(reached(name, imports) for name in pure))
    ours = {name for name in below if not name.startswith(("cgpu_env.", "cgpu_k8s."))}
    assert ours == {"cgpu_node.allocation_annotation", "cgpu_node.jsontext"}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ('"import os, cgpu_cli"', {"os", "cgpu_cli"}),
        ('"x = 1; from cgpu_cli import smi"', {"cgpu_cli"}),
        ('b"import cgpu_cli.smi"', {"cgpu_cli.smi"}),
        ('f"import cgpu_cli.{x}"', {"cgpu_cli."}),
        ('pkgutil.resolve_name("cgpu_cli.smi:main")', {"cgpu_cli.smi:main"}),
        ("from importlib import import_module as i", {"any", "importlib.import_module"}),
        ("importlib.import_module(x)", {"any"}),
    ],
)
def test_an_import_is_found_where_it_hides(source: str, names: set[str]) -> None:
    assert imported(source) == names


def test_the_environment_package_imports_the_standard_library_only() -> None:
    for path in (ROOT / "cgpu_env").rglob("*.py"):
        names = tops(imported(path.read_text(encoding="utf-8")))
        assert names <= sys.stdlib_module_names | {"cgpu_env"}


def test_every_link_leads_to_a_file_of_the_repository() -> None:
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    names = set(filter(None, listed.split("\0")))
    links = [ROOT / name for name in names if (ROOT / name).is_symlink()]
    assert links
    for link in links:
        place = link.resolve()
        assert place.is_relative_to(ROOT.resolve()), link
        assert str(place.relative_to(ROOT.resolve())) in names, link
