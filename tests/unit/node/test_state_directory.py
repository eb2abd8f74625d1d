"""Where state is kept, and when that place is not trusted (REL-5)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from cgpu_env import CgpuError
from cgpu_node import paths
from cgpu_node.paths import default_state_dir, open_state, write_atomically

pytestmark = pytest.mark.unit


def test_root_and_users_have_directories_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_state_dir() == "/run/cgpu"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    assert default_state_dir() == "/run/user/1000/cgpu"
    for unusable in ("", "relative"):
        monkeypatch.setenv("XDG_RUNTIME_DIR", unusable)
        assert default_state_dir() == "/tmp/cgpu-1000"


def test_a_new_directory_is_closed_to_others_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = open_state(str(tmp_path / "state"))
    finally:
        os.umask(before)
    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o700


def test_a_misspelt_path_makes_no_tree(tmp_path: Path) -> None:
    """CLI-8: only the last part of it is made."""
    with pytest.raises(CgpuError) as refusal:
        open_state(str(tmp_path / "a" / "b" / "state"))
    path = f"{tmp_path}/a/b"
    assert str(refusal.value) == f"state directory {path}/state: there is no directory {path}"
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_the_default_place_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may put one into /tmp."""
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    monkeypatch.setattr(paths, "default_state_dir", lambda: str(tmp_path / "link"))
    with pytest.raises(CgpuError, match="link: not a directory"):
        open_state()
    assert open_state(str(tmp_path / "link")) == str(tmp_path / "mine")


def test_a_file_is_said_to_be_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CgpuError, match=r"file: not a directory$"):
        open_state(str(tmp_path / "file"))


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_directory_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(mode)
    with pytest.raises(CgpuError, match="other users can write to it"):
        open_state(str(tmp_path / "state"))


def test_a_directory_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(CgpuError, match=r"owned by user \d+, not by you"):
        open_state(str(tmp_path))


def test_a_file_is_replaced_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REL-1: also where an earlier writer was killed half-way."""
    path = tmp_path / "file"
    (tmp_path / "file.new").write_text("half of what")
    write_atomically(str(path), b"old")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def fail(*_: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(OSError, match="No space"):
        write_atomically(str(path), b"new")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("file", "old")]
