"""Who may import and include whom, as docs/ARCHITECTURE.md says."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = {
    "cgpu_env": (ROOT / "cgpu_env", set()),
    "cgpu_native": (ROOT / "native" / "cgpu_native", {"cgpu_env"}),
    "cgpu_shim": (ROOT / "shim" / "cgpu_shim", set()),
    "cgpu_node": (ROOT / "node" / "cgpu_node", {"cgpu_native", "cgpu_env"}),
    "cgpu_hook": (
        ROOT / "hook" / "cgpu_hook",
        {"cgpu_node", "cgpu_native", "cgpu_shim", "cgpu_env"},
    ),
    "cgpu_cli": (
        ROOT / "cli" / "cgpu_cli",
        {
            "cgpu_hook",
            "cgpu_node",
            "cgpu_native",
            "cgpu_shim",
            "cgpu_env",
            "cgpu_sim",
            "cgpu_install",
            "cgpu_upgrade",
            "cgpu_doctor",
        },
    ),
    "cgpu_upgrade": (
        ROOT / "cli" / "cgpu_upgrade",
        {"cgpu_install", "cgpu_node", "cgpu_native", "cgpu_env"},
    ),
    "cgpu_install": (ROOT / "cli" / "cgpu_install", {"cgpu_node", "cgpu_env"}),
    "cgpu_doctor": (
        ROOT / "cli" / "cgpu_doctor",
        {"cgpu_upgrade", "cgpu_install", "cgpu_node", "cgpu_shim", "cgpu_env"},
    ),
    "cgpu_server": (
        ROOT / "server" / "cgpu_server",
        {"cgpu_node", "cgpu_native", "cgpu_env"},
    ),
    "cgpu_entry": (ROOT / "cli" / "cgpu_entry", {"cgpu_cli", "cgpu_server"}),
    "cgpu_sim": (ROOT / "tests" / "sim" / "cgpu_sim", {"cgpu_env"}),
}
# Folder with C in it: the folders whose headers it may include.
INCLUDES = {
    "native": {"native"},
    "shim": {"shim", "native"},
    "hook": {"hook"},
    "tests/sim": {"tests/sim", "shim"},  # NVML's types are declared once
}


def imported(source: str) -> set[str]:
    """Top-level names that a module imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            names.add((node.module or "").partition(".")[0])
    return names


def included(source: str) -> set[str]:
    """Names in quoted includes."""
    return set(re.findall(r'^\s*#\s*include\s+"([^"]+)"', source, re.MULTILINE))


def _headers(folder: str) -> set[str]:
    return {
        path.name for kind in ("h", "def", "inc") for path in (ROOT / folder).rglob(f"*.{kind}")
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_what_is_below_it(package: str) -> None:
    folder, below = PACKAGES[package]
    for path in folder.rglob("*.py"):
        ours = {n for n in imported(path.read_text(encoding="utf-8")) if n.startswith("cgpu_")}
        assert ours <= below | {package}, path


@pytest.mark.parametrize("folder", INCLUDES)
def test_c_includes_only_headers_of_its_own_folder_and_of_those_below(folder: str) -> None:
    allowed = set().union(*(_headers(below) for below in INCLUDES[folder]))
    for kind in ("c", "h", "def", "inc"):
        for path in (ROOT / folder).rglob(f"*.{kind}"):
            names = {Path(n).name for n in included(path.read_text(encoding="utf-8"))}
            assert names <= allowed, path


def test_the_environment_package_imports_the_standard_library_only() -> None:
    for path in (ROOT / "cgpu_env").rglob("*.py"):
        assert imported(path.read_text(encoding="utf-8")) <= sys.stdlib_module_names | {"cgpu_env"}


def test_every_link_leads_to_a_file_of_the_repository() -> None:
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    names = set(filter(None, listed.split("\0")))
    links = [ROOT / name for name in names if (ROOT / name).is_symlink()]
    assert links
    for link in links:
        place = link.resolve()
        assert place.is_relative_to(ROOT.resolve()), link
        assert str(place.relative_to(ROOT.resolve())) in names, link
