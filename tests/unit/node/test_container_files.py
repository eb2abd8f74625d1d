"""Files that containers can lease, or replace, are opened in one place (REL-7)."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
OPENS = {"open", "read_text", "read_bytes", "write_text", "write_bytes", "truncate"}
THEIRS = re.compile(r"directory\}|limits|ledger|record\.|containers")
NEVER_WAITS = re.compile(r"O_PATH|O_DIRECTORY|open_file\(")


def opens() -> Iterator[tuple[str, str]]:
    """The places where the host's programs open files, and the calls that they use."""
    for folder in ("node", "hook", "server", "cli", "native/cgpu_native"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call):
                    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                    if name in OPENS:
                        yield f"{file.relative_to(ROOT)}:{node.lineno}", ast.unparse(node)


def test_a_containers_files_are_opened_by_open_file_only() -> None:
    found = [(where, words) for where, words in opens() if THEIRS.search(words)]
    assert [each for each in found if not NEVER_WAITS.search(each[1])] == []
    assert found, "the words that name them are others now"
