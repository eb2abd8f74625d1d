"""MEM-6 and MEM-7 with whole interpreters: forks, threads and kills."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import resource
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

import cgpu_native
from lab.driver.attached import AttachedLedger

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier
    from pathlib import Path

pytestmark = pytest.mark.integration

PROCESSES, THREADS, ROUNDS, UNIT = 16, 4, 20, 1 << 20
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    cgpu_native.create_ledger(tmp_path, "ledger")
    return tmp_path / "ledger"


def _fill(path: Path, cap: int, filled: Barrier, seen: Barrier) -> None:
    with AttachedLedger.attach(path) as ledger:

        def work() -> None:
            for _ in range(ROUNDS):
                ledger.charge(0, cap, UNIT)

        threads = [threading.Thread(target=work) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        filled.wait(60)
        seen.wait(60)


def test_mem_6_sixteen_processes_of_four_threads_fill_a_cap_exactly(path: Path) -> None:
    cap = PROCESSES * THREADS * ROUNDS * UNIT
    filled, seen = FORK.Barrier(PROCESSES + 1), FORK.Barrier(PROCESSES + 1)
    workers = [FORK.Process(target=_fill, args=(path, cap, filled, seen)) for _ in range(PROCESSES)]
    for worker in workers:
        worker.start()
    filled.wait(60)
    with AttachedLedger.attach(path) as ledger:
        assert ledger.read_used(0) == cap
        assert sorted(p.pid for p in ledger.list_processes(0)) == sorted(w.pid for w in workers)
        with pytest.raises(cgpu_native.NativeError, match="does not fit under the cap"):
            ledger.charge(0, cap, 1)
        assert ledger.read_refused(0) == 1
        seen.wait(60)
        for worker in workers:
            worker.join()
            assert worker.exitcode == 0
        assert ledger.read_used(0) == 0


def _hold(path: Path, ready: Barrier) -> None:
    faulthandler.disable()  # pytest's: it would print this death
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ledger = AttachedLedger.attach(path)
    ledger.charge(0, UNIT, UNIT // 4)
    ready.wait(60)
    time.sleep(600)


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGQUIT])
def test_mem_7_death_by_any_signal_gives_back(path: Path, sign: signal.Signals) -> None:
    ready = FORK.Barrier(5)
    workers = [FORK.Process(target=_hold, args=(path, ready)) for _ in range(4)]
    for worker in workers:
        worker.start()
    ready.wait(60)
    with AttachedLedger.attach(path) as ledger:
        assert ledger.read_used(0) == UNIT
        for worker in workers:
            assert worker.pid is not None
            os.kill(worker.pid, sign)
            worker.join()
        end = time.monotonic() + 1
        while ledger.read_used(0) != 0:
            assert time.monotonic() < end
            time.sleep(0.01)


def _child_of(ledger: cgpu_native.Ledger, path: Path) -> None:
    assert (ledger.read_used(0), ledger.read_own(0)) == (0, 0)
    with pytest.raises(cgpu_native.NativeError):
        ledger.charge(0, UNIT, 1)
    with AttachedLedger.attach(path) as own:
        assert own.charge(0, UNIT, UNIT // 2) == UNIT // 2
        assert own.read_used(0) == UNIT


def test_a_forked_worker_is_detached_and_attaches_anew(path: Path) -> None:
    with AttachedLedger.attach(path) as ledger:
        ledger.charge(0, UNIT, UNIT // 2)
        worker = FORK.Process(target=_child_of, args=(ledger, path))
        worker.start()
        worker.join()
        assert worker.exitcode == 0
        assert (ledger.read_used(0), ledger.read_own(0)) == (UNIT // 2, UNIT // 2)
