"""The control tree as a file system, without a kernel: what it keeps, and how it fails (TREE-2)."""

from __future__ import annotations

import errno
import os
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING, cast

import pytest

from cgpu_env import CgpuError
from cgpu_server.tree import mounts
from cgpu_server.tree.filesystem import ControlTree, Files
from cgpu_server.tree.nodes import Folder, MissingError, ReadOnlyError, TreeFile

if TYPE_CHECKING:
    from pathlib import Path

    from cgpu_server.tree.nodes import Tree

pytestmark = pytest.mark.unit


class OneFile:
    """A tree with one node, which can be written."""

    def find(self, path: str) -> Folder | TreeFile:
        if path == "/":
            return Folder()
        if path != "/node":
            raise MissingError(path)
        return TreeFile(lambda *_: "", lambda *_: None)

    def read(self, path: str) -> str:
        assert path == "/node"
        return "0123456789\n"


def files(error: Exception | None = None) -> Files:
    """Files of it, to which writing fails with ``error``."""

    def write(_: str, __: str) -> None:
        if error is not None:
            raise error

    return Files(cast("Tree", OneFile()), write)


def test_what_was_closed_is_forgotten() -> None:
    """REL-2: whoever reads a file a million times does not fill the server's memory."""
    made = files()
    handles = [made.open("/node", os.O_RDONLY) for _ in range(3)]
    assert len(set(handles)) == len(made._open) == 3  # noqa: SLF001
    for handle in handles:
        made.release("/node", handle)
        assert made.read("/node", 100, 0, handle) == b""
    assert made._open == {}  # noqa: SLF001


def test_a_file_is_read_in_pieces() -> None:
    made = files()
    handle = made.open("/node", os.O_RDWR)
    pieces = [made.read("/node", 4, offset, handle) for offset in (0, 4, 8, 12)]
    assert pieces == [b"0123", b"4567", b"89\n", b""]


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (MissingError("gone"), errno.ENOENT),
        (ReadOnlyError("for others"), errno.EACCES),
        (CgpuError("policy=9: expected less"), errno.EINVAL),
        (FutureTimeout(), errno.ETIMEDOUT),
    ],
)
def test_what_a_writer_is_told(error: Exception, number: int) -> None:
    with pytest.raises(OSError, match=f"Errno {number}]"):
        files(error).write("/node", b"1\n", 0, None)
    assert files().write("/node", b"1\n", 0, None) == 2


def test_a_value_is_not_written_piece_by_piece() -> None:
    with pytest.raises(OSError, match="at once") as refusal:
        files().write("/node", b"1\n", 2, None)
    assert refusal.value.errno == errno.EINVAL


def test_a_device_that_nobody_mounted_is_closed_when_another_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TREE-3: each start of the service's root outside asks anew."""
    opened: list[int] = []

    def open_device() -> int:
        opened.append(os.open("/dev/null", os.O_RDWR))
        return opened[-1]

    monkeypatch.setattr(mounts, "open_device", open_device)
    tree = ControlTree(cast("Tree", OneFile()), str(tmp_path), lambda *_: None)
    with pytest.raises(CgpuError, match="no device was asked for"):
        tree.start_opened()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(3):
        assert tree.open_device() == opened[-1]
    assert len(os.listdir("/proc/self/fd")) == before + 1  # noqa: PTH208
    os.close(opened[-1])
