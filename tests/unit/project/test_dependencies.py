"""What installs with cgpu is what it imports, no more and no less."""

from __future__ import annotations

import ast
import re
import sys
from importlib.metadata import packages_distributions, requires
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = set(PROJECT["tool"]["mypy"]["packages"])
FOLDERS = [".", *PROJECT["tool"]["mypy"]["mypy_path"]]
CONDITIONAL = {"tomli"}  # not installed for every Python
DEBIAN_12 = {"python_version": "3.11", "python_full_version": "3.11.2"}


# Packages that only an extra makes work, with its name.
EXTRAS = {"cgpu_k8s": "k8s"}


def product_files(packages: set[str]) -> list[Path]:
    places = [ROOT / folder / package for folder in FOLDERS for package in packages]
    return [path for place in places for path in place.rglob("*.py")]


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all below it, but what only a type checker reads."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from executed(child)


def imported(path: Path) -> set[str]:
    """The first names of all modules that a file imports when it runs, also in functions."""
    names: set[str] = set()
    for node in executed(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
    return {name.split(".")[0] for name in names}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def required(listed: list[str]) -> set[str]:
    """The distributions that a list in pyproject.toml names."""
    return {normal(re.split(r"[<>=;\s]", each)[0]) for each in listed}


def brought(packages: set[str]) -> set[str]:
    """The distributions that packages import."""
    names = set().union(*map(imported, product_files(packages)))
    others = names - set(sys.stdlib_module_names) - PACKAGES - CONDITIONAL
    distributions = packages_distributions()
    return {normal(distributions[name][0]) for name in others}


def needed(listed: list[str]) -> set[str]:
    """The distributions that a list in pyproject.toml brings, with all that these bring."""
    found: set[str] = set()
    todo = [(each, {""}) for each in listed]
    while todo:
        text, extras = todo.pop()
        each = Requirement(text)
        chosen = [DEBIAN_12 | {"extra": extra} for extra in extras]
        if each.marker is None or any(map(each.marker.evaluate, chosen)):
            found.add(normal(each.name))
            todo += [(below, {"", *each.extras}) for below in requires(each.name) or []]
    return found


def test_the_package_and_the_image_pin_what_they_bring() -> None:
    always = needed(PROJECT["project"]["dependencies"])
    more = needed(PROJECT["project"]["optional-dependencies"]["k8s"]) - always
    for listed, file in ((always, "debian"), (more, "image")):
        lines = (ROOT / "deploy" / file / "constraints.txt").read_text().splitlines()
        pins = dict(line.split("==") for line in lines)
        assert {normal(name) for name in pins} == listed, file
        assert [str(Version(pin)) for pin in pins.values()] == list(pins.values()), "no patterns"


def test_each_dependency_is_imported_and_each_import_is_a_dependency() -> None:
    listed = required(PROJECT["project"]["dependencies"])
    assert brought(PACKAGES - set(EXTRAS)) == listed - CONDITIONAL


@pytest.mark.parametrize("package", EXTRAS)
def test_what_an_extra_brings_is_imported_by_its_package_alone(package: str) -> None:
    listed = required(PROJECT["project"]["dependencies"])
    extra = required(PROJECT["project"]["optional-dependencies"][EXTRAS[package]])
    assert brought({package}) - listed == extra
