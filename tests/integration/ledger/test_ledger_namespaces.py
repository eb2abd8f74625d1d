"""One ledger seen from several places: other pid and mount namespaces, other users, the host."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import cgpu_native
from lab.driver.attached import AttachedLedger

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

CAP = 1 << 30
HOLDER = """
import os, signal, sys
from cgpu_native._native import ffi, lib
ledger = ffi.new("struct cgpu_ledger **")
assert lib.cgpu_ledger_attach(os.fsencode(sys.argv[1]), os.getpid(), ledger) == 0
cap, size = map(int, sys.argv[2:])
assert lib.cgpu_ledger_charge(ledger[0], 0, cap, size, ffi.new("uint64_t *")) == 0
print(os.getpid(), flush=True)
signal.pause()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    cgpu_native.create_ledger(tmp_path, "ledger")
    return tmp_path / "ledger"


@pytest.fixture
def observer(path: Path) -> Iterator[cgpu_native.Ledger]:
    with cgpu_native.Ledger.observe(path) as ledger:
        yield ledger


def hold(path: str, size: int, *prefix: str) -> tuple[subprocess.Popen[str], int]:
    """Start a process that holds ``size`` bytes; it and the pid that it sees itself as."""
    process = subprocess.Popen(
        [*prefix, sys.executable, "-c", HOLDER, path, str(CAP), str(size)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def gone_within_a_second(observer: cgpu_native.Ledger) -> bool:
    end = time.monotonic() + 1
    while observer.read_used(0) != 0 and time.monotonic() < end:
        time.sleep(0.01)
    return observer.read_used(0) == 0


def test_mem_7_the_host_sees_a_process_of_another_pid_namespace_live_and_die(
    path: Path, observer: cgpu_native.Ledger
) -> None:
    namespaces = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child")
    process, own_pid = hold(str(path), 1000, *namespaces)
    assert own_pid == 1
    assert observer.list_processes(0) == [cgpu_native.LedgerProcess(1, 0, 1000)]
    kill(process)
    assert gone_within_a_second(observer)


def test_a_process_that_reaches_the_file_under_another_name_shares_the_account(
    path: Path, observer: cgpu_native.Ledger, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.touch()
    script = f'mount --bind {path} {other} && exec "$@"'
    namespaces = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh")
    process, _ = hold(str(other), 600, *namespaces)
    with AttachedLedger.attach(path) as ledger:
        assert ledger.read_used(0) == 600
        with pytest.raises(cgpu_native.NativeError, match="does not fit under the cap"):
            ledger.charge(0, 1000, 401)
        kill(process)
        ledger.charge(0, 1000, 1000)  # the dead one's bytes are there at once
        assert observer.list_processes(0) == [
            cgpu_native.LedgerProcess(os.getpid(), ledger_slot(ledger), 1000)
        ]


def ledger_slot(ledger: cgpu_native.Ledger) -> int:
    return next(process.slot for process in ledger.list_processes(0))


def _charge_as_another_user(path: str) -> None:
    if os.geteuid() == 0:
        os.setresuid(12345, 12345, 12345)
    with AttachedLedger.attach(path) as ledger:
        assert ledger.charge(0, CAP, 500) == 500
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_of_any_user_can_charge() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        Path(folder).chmod(0o755)
        cgpu_native.create_ledger(folder, "ledger")
        path = f"{folder}/ledger"
        context = multiprocessing.get_context("fork")
        worker = context.Process(target=_charge_as_another_user, args=(path,))
        worker.start()
        worker.join()
        assert worker.exitcode == -signal.SIGKILL  # and not an exception
        with cgpu_native.Ledger.observe(path) as observer:
            assert gone_within_a_second(observer)


def test_two_ledgers_know_nothing_of_one_another(path: Path, tmp_path: Path) -> None:
    cgpu_native.create_ledger(tmp_path, "second")
    with (
        AttachedLedger.attach(path) as first,
        AttachedLedger.attach(tmp_path / "second") as second,
    ):
        first.charge(0, 1000, 1000)
        second.charge(0, 1000, 1000)
        assert (first.read_used(0), second.read_used(0)) == (1000, 1000)
