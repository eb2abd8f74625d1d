"""K8S-7, as one file: what is in it, and which versions of Python run it."""

from __future__ import annotations

import ast
import email
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from cgpu_env.version import VERSION
from lab.products import distribution

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]  # it is packed first

VERSIONS = [f"3.{minor}" for minor in range(10, 15)]
OLD = """
import runpy, sys
sys.version_info = (3, 9, 6)
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return distribution.plugin(tmp_path_factory.mktemp("plugin"))


@pytest.fixture(scope="module")
def packed(file: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(file) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


@pytest.fixture(scope="module")
def trees(packed: dict[str, bytes]) -> dict[str, ast.Module]:
    """All modules, as the oldest version of Python reads them."""
    modules = {name: content for name, content in packed.items() if name.endswith(".py")}
    return {name: ast.parse(modules[name], name, feature_version=(3, 10)) for name in modules}


def module(path: str) -> str:
    """The name of a module of cgpu; "": of none."""
    found = re.search(r"(?:^|/)(cgpu_[\w/]*?)(?:/__init__)?\.py$", path)
    return found[1].replace("/", ".") if found else ""


def imported(tree: ast.Module) -> set[str]:
    """All that may be a module's name, also in functions."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def test_it_is_python_alone_with_the_licences(packed: dict[str, bytes]) -> None:
    others = {name for name in packed if not name.endswith(".py")}
    about = {
        name for name in others if re.search(r"\.dist-info/(METADATA$|.*(LICEN|NOTICE))", name)
    }
    assert others - about == {"LICENSE"}
    libraries = {name.partition("/")[0] for name in about}
    assert libraries == {name.partition("/")[0] for name in about if "LICEN" in name}


def test_it_has_all_that_it_imports(trees: dict[str, ast.Module]) -> None:
    """Also what a type checker alone reads, which is no more; ``cgpu_entry`` starts others too."""
    ours = {name: module(name) for name in trees if module(name)}
    wanted = set().union(*(imported(trees[name]) for name in ours if ours[name] != "cgpu_entry"))
    assert wanted & set(map(module, distribution.files())) <= set(ours.values())
    known = {name.partition("/")[0].removesuffix(".py") for name in trees}
    first = {name.partition(".")[0] for name in wanted}
    assert first - set(sys.stdlib_module_names) <= known


@pytest.mark.parametrize("version", VERSIONS)
def test_its_libraries_are_for_each_version_and_need_no_others(
    packed: dict[str, bytes], version: str
) -> None:
    files = (content for name, content in packed.items() if name.endswith("/METADATA"))
    libraries = [email.message_from_bytes(content) for content in files]
    there = {canonicalize_name(each["Name"]): each["Version"] for each in libraries}
    machine = {"python_version": version, "sys_platform": "darwin", "extra": ""}
    for each in libraries:
        assert version in SpecifierSet(each["Requires-Python"]), each["Name"]
        for text in each.get_all("Requires-Dist", []):
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate(machine):
                assert there[canonicalize_name(needed.name)] in needed.specifier, text


def test_it_starts_by_its_name_where_nothing_is_installed(file: Path, tmp_path: Path) -> None:
    (tmp_path / "python3").symlink_to(os.path.realpath(sys.executable))
    path = f"{tmp_path}:{file.parent}:/usr/bin"  # the last for env
    shown = subprocess.check_output(["env", f"PATH={path}", file.name, "--version"], text=True)
    assert shown == f"{file.name} {VERSION}\n"


def test_an_older_python_is_one_sentence(file: Path, packed: dict[str, bytes]) -> None:
    ast.parse(packed["__main__.py"], feature_version=(3, 4))
    words = [sys.executable, "-I", "-S", "-c", OLD, file]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        "kubectl-inspect-cgpu: python3 in PATH is Python 3.9: it must be 3.10 or later; install"
        " one, and put its folder first in PATH\n"
    )
