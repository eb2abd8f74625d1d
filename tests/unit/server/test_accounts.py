"""What is read of other accounts, whose names anybody may bind (CLI-2)."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from cgpu_node import accounts

pytestmark = pytest.mark.unit


@pytest.fixture
def sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kernel's list of sockets, and a driver."""
    (tmp_path / "libcuda.so.1").touch()
    (tmp_path / "list").touch()
    monkeypatch.setattr(accounts, "_SOCKETS", str(tmp_path / "list"))
    monkeypatch.setattr(accounts, "_is_roots", lambda _: False)
    return tmp_path / "list"


def bound(sockets: Path, names: list[bytes]) -> None:
    sockets.write_bytes(b"".join(b"0: 2 0 0 0001 01 7 @" + name + b"\n" for name in names))


def test_an_account_is_not_beside_itself_however_long_its_path(sockets: Path) -> None:
    """A name is cut off at 107 bytes."""
    state = sockets.parent / ("s" * 150)
    state.mkdir()
    bound(sockets, [accounts.format_socket_name(str(state), str(sockets.parent))])
    assert accounts.find_other_accounts(str(state), str(sockets.parent)) == []
    [other] = accounts.find_other_accounts("/nowhere", str(sockets.parent))
    assert (other.uid, other.state_dir[:1]) == (os.geteuid(), "/")


@pytest.mark.parametrize("path", [b"/x\r\x1b[2Kcgpu-run: error", b"relative", b"", b"/\xff"])
def test_a_name_that_no_account_has_is_passed_over(sockets: Path, path: bytes) -> None:
    """It would be printed on others' terminals."""
    own = accounts.format_socket_name("/x", str(sockets.parent))
    bound(sockets, [own.partition(b":")[0] + b":" + path])
    assert accounts.find_other_accounts("/nowhere", str(sockets.parent)) == []
    assert "\x1b" not in accounts.format_warning([accounts.Account(0, "/x\x1b[2K")])


def test_however_many_names_are_bound_few_are_read(sockets: Path) -> None:
    start = accounts.format_socket_name("/", str(sockets.parent)).partition(b":")[0]
    bound(sockets, [start + b"%d:/x%d" % (number, number) for number in range(1000)])
    assert len(accounts.find_other_accounts("/nowhere", str(sockets.parent))) == 100


def test_a_server_of_root_that_only_listens_shares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its service binds no name that others see."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:  # state is in memory, too
        driver, state = Path(folder, "driver"), Path(folder, "state")
        driver.mkdir()
        (driver / "libcuda.so.1").touch()
        monkeypatch.setattr(accounts, "ROOT_STATE", str(state))
        monkeypatch.setattr(accounts.server, "is_listening", lambda _: True)
        monkeypatch.setattr(accounts, "driver_folder", lambda *_: str(driver))
        for path, found in (
            (state, []),
            (state / "containers", []),
            (state / "containers/web", [accounts.Account(0, str(state))]),
        ):
            path.mkdir()
            assert accounts.find_other_accounts("/nowhere", str(driver)) == found
