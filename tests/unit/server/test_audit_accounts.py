"""What the audit reads in a container's ledger (MEM-9)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cgpu_native._native import ffi, lib

import cgpu_native
from cgpu_node.shares.record import GpuShare, Owner, Record
from cgpu_server.audit.accounts import read_accounts
from cgpu_server.audit.verdict import LedgerAccount
from lab.driver.attached import AttachedLedger

pytestmark = pytest.mark.unit

CAP = 1000


def made(folder: Path) -> Record:
    """A container with two GPUs, whose ledger and limits are in ``folder``."""
    (folder / "limits").touch()
    cgpu_native.create_ledger(folder, "ledger")
    gpus = tuple(GpuShare(number, f"GPU-{number}", CAP) for number in range(2))
    owner = Owner(1, 1, None)
    return Record(
        "c", "container", owner, gpus, 1, high_priority=False, policy=0, command=(),
        directory=str(folder),
    )  # fmt: skip


def share(folder: Path, gpu: int, exported: int, imported: int, due: int) -> None:
    """Write down for the process in the first slot what it shares, and what it pays for of that."""
    path = folder / "ledger"
    file = ffi.new("struct cgpu_ledger_file *")
    ffi.buffer(file)[:] = path.read_bytes()
    sharing = ffi.cast("struct cgpu_ledger_sharing *", ffi.addressof(file, "works", gpu))
    sharing.owner, sharing.gpu = 1, lib.CGPU_LEDGER_SHARINGS + gpu
    sharing.exported, sharing.imported, sharing.due = exported, imported, due
    file.work_bound = gpu + 1
    path.write_bytes(ffi.buffer(file))


def test_what_others_pay_for_is_no_more_than_was_promised(tmp_path: Path) -> None:
    record = made(tmp_path)
    with AttachedLedger.attach(tmp_path / "ledger") as ledger:
        ledger.charge(0, CAP, 300)
        share(tmp_path, 0, exported=0, imported=200, due=200)
        share(tmp_path, 1, exported=5000, imported=5000, due=0)
        found = read_accounts([record])
    pid = os.getpid()
    assert found[str(tmp_path), 0] == LedgerAccount(300, {pid: 300}, {}, 200, 1)
    assert found[str(tmp_path), 1] == LedgerAccount(0, {pid: 0}, {pid: CAP}, CAP, 1)


def test_a_ledger_that_its_container_ruined_says_nothing(tmp_path: Path) -> None:
    record = made(tmp_path)
    (tmp_path / "ledger").write_bytes(b"")
    assert read_accounts([record]) == {(str(tmp_path), n): LedgerAccount(0, {}) for n in range(2)}
    (tmp_path / "limits").unlink()
    assert read_accounts([record]) == {}
