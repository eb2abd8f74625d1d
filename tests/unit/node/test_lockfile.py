"""Locks that other users cannot hold, and that name who does (REL-8)."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

import pytest

from cgpu_env import CgpuError
from cgpu_node.facts import discovery
from cgpu_node.lockfile import LockFile, try_lock

pytestmark = pytest.mark.unit


def lock(path: Path, **more: bool) -> LockFile:
    return LockFile(str(path), "the thing", patience=0.1, **more)


def test_nobody_else_can_open_it_even_if_an_earlier_release_made_it(tmp_path: Path) -> None:
    """Who can open a file or folder can lock it."""
    (tmp_path / "old").touch(mode=0o644)
    for name in ("old", "new"):
        with lock(tmp_path / name):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_who_waits_in_vain_learns_who_holds_it_whatever_locks_others_have(
    tmp_path: Path,
) -> None:
    """The kernel's list of locks is as long as its users make it."""
    many = os.open(tmp_path / "many", os.O_RDWR | os.O_CREAT)
    for number in range(3000):
        fcntl.lockf(many, fcntl.LOCK_EX, 1, 2 * number)
    with lock(tmp_path / "a"), pytest.raises(CgpuError) as refusal, lock(tmp_path / "a"):
        pass
    os.close(many)
    assert str(refusal.value) == (
        f"the thing: process {os.getpid()} has held its lock for 0.1 seconds"
    )
    assert "kill -9" in refusal.value.hint
    with lock(tmp_path / "a"):
        pass


def test_a_holder_of_an_earlier_release_has_no_name(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "a", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(CgpuError, match="another process has held its lock"), lock(tmp_path / "a"):
        pass
    os.close(fd)


def test_a_temporary_one_leaves_nothing_and_is_never_held_twice(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with lock(path, temporary=True):
        late = os.open(path, os.O_RDWR)  # as one who waits has it
    assert not path.exists()
    with lock(path, temporary=True):
        fcntl.flock(late, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(CgpuError), lock(path, temporary=True):
            pass
        assert path.exists()
    os.close(late)


def test_a_file_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    for missing in (lock(tmp_path / "b" / "a"), lock(tmp_path / "a", create=False)):
        with pytest.raises(CgpuError, match="the thing: No such file"), missing:
            pass


def test_a_driver_that_is_asked_elsewhere_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "_PATIENCE", 0.1)
    with (
        lock(tmp_path / "node.lock"),
        pytest.raises(CgpuError, match=f"process {os.getpid()} has held its lock for 0.1 s"),
    ):
        discovery.discover_facts(str(tmp_path), "/nowhere", {})


def test_one_that_is_taken_has_its_holders_id_and_is_free_once_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for _ in range(2):
        held = try_lock(str(path))
        assert held is not None
        assert path.read_text() == f"{os.getpid()}\n"
        assert try_lock(str(path)) is None
        with pytest.raises(CgpuError, match=f"process {os.getpid()} has held"), lock(path):
            pass
        os.close(held)
