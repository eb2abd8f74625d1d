"""No two classes of the product have the same name, and most functions' names have two words."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from test_layers import PACKAGES, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = pytest.mark.unit

ROOMS = ("cgpu_env", "native", "node", "hook", "server", "cli", "k8s")
MOST = 0.4  # of a room's functions whose names have one word: the class or module is the object


def twice(folders: Iterable[Path]) -> set[str]:
    """The names that several classes have, wherever they are in the modules of the folders."""
    paths = [path for folder in folders for path in folder.rglob("*.py")]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = [node.name for node in nodes if isinstance(node, ast.ClassDef)]
    return {name for name in names if names.count(name) > 1 and not name.startswith("_")}


def test_a_class_has_its_name_alone() -> None:
    rooms = {package: room for package, (room, _) in PACKAGES.items() if package != "cgpu_sim"}
    assert twice(ROOT / rooms[package] / package for package in rooms) == set()


def test_a_name_that_two_classes_have_is_found(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "a.py").write_text("class Gpu: ...\nclass _Own: ...\n")
    (tmp_path / "b" / "b.py").write_text(
        "if True:\n    class Gpu: ...\n    class Node: ...\n    class _Own: ...\n"
    )
    assert twice([tmp_path / "a", tmp_path / "b"]) == {"Gpu"}


def functions(folder: Path) -> list[str]:
    """The names of all functions below, also of methods and inner ones, but not of dunder ones."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = [n.name for n in nodes if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return [name for name in names if not (name.startswith("__") and name.endswith("__"))]


def of_one_word(names: Iterable[str]) -> list[str]:
    return [name for name in names if "_" not in name.strip("_")]


@pytest.mark.parametrize("room", ROOMS)
def test_the_name_of_a_function_is_verb_and_noun(room: str) -> None:
    names = functions(ROOT / room)
    assert len(of_one_word(names)) <= MOST * len(names)


def test_functions_of_one_word_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "a.py").write_text(
        "class A:\n    def __init__(self): ...\n    async def _read(self): ...\n"
        "def read_file():\n    def inner(): ...\n"
    )
    names = functions(tmp_path)
    assert sorted(names) == ["_read", "inner", "read_file"]
    assert sorted(of_one_word(names)) == ["_read", "inner"]
