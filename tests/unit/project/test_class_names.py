"""No two classes of the product have the same name; what is private may."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from test_layers import PACKAGES, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = pytest.mark.unit


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
