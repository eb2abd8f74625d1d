"""No two classes of one package have the same name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from test_layers import PACKAGES, ROOT

pytestmark = pytest.mark.unit


def twice(folder: Path) -> set[str]:
    """The names that several classes have, wherever they are in the modules of a folder."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = [node.name for node in nodes if isinstance(node, ast.ClassDef)]
    return {name for name in names if names.count(name) > 1}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_class_has_its_name_alone(package: str) -> None:
    assert twice(ROOT / PACKAGES[package][0] / package) == set()


def test_a_name_that_two_classes_have_is_found(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "a.py").write_text("class Gpu: ...\n")
    (tmp_path / "room" / "b.py").write_text("if True:\n    class Gpu: ...\n    class Node: ...\n")
    assert twice(tmp_path) == {"Gpu"}
