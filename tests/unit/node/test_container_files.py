"""Files that containers can lease, or replace, are opened in one place (REL-7)."""

from __future__ import annotations

import ast
import fcntl
import os
import re
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cgpu_env import CgpuError
from cgpu_node.shares import registry
from cgpu_node.shares.registry import Registry

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


def test_who_holds_the_lock_is_looked_for_in_a_bounded_part_of_all_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "1: OFDLCK ADVISORY  WRITE -1 00:1c:99999999 7 7\n"
    (tmp_path / "locks").write_text(line * 100_000)
    locks = (tmp_path / "locks").open()
    fd = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    monkeypatch.setattr(registry, "open", lambda _: nullcontext(locks), raising=False)
    with (
        pytest.raises(CgpuError, match="another process has held its lock"),
        Registry(str(tmp_path), patience=0.01).locked(),
    ):
        pass
    os.close(fd)
    assert os.lseek(locks.fileno(), 0, os.SEEK_CUR) < 10_000 * len(line)
    locks.close()
