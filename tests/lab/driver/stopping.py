"""Stopping programs where a real driver lets them stop: outside its critical section.

A process in the kernel's driver is stopped when it returns from there. The simulated driver's
critical section is in the process itself, which may be stopped there and then keeps every other
process off the GPUs.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_LOCK_BYTE = 1 << 50  # STATE_LOCK_BYTE of tests/sim/machine/state.h
_F_OFD_GETLK = 36
_FLOCK = "hhqqi4x"  # struct flock: type, whence, start, length, pid
_LOOKS, _LOOK_SECONDS = 20, 0.0005  # 10 ms in all; a critical section takes some 10 us
_TIMES = 100
_STILL = frozenset("TtZX")
_PTRACE_DETACH, _PTRACE_SEIZE, _PTRACE_INTERRUPT, _WALL = 17, 0x4206, 0x4207, 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)


def stop(driver: Path, *pids: int) -> None:
    """Send SIGSTOP to processes that use the simulated driver at ``driver``.

    Those that have ended are passed over. When this returns, none of them is in the driver's
    critical section.
    """

    def halt() -> None:
        send(pids, signal.SIGSTOP)
        await_stop(pids)

    _halt_outside(driver, halt, lambda: send(pids, signal.SIGCONT))


@contextlib.contextmanager
def stopped(driver: Path, pid: int) -> Iterator[None]:
    """A process stands still as after Ctrl-Z, outside the driver's critical section."""
    stop(driver, pid)
    try:
        yield
    finally:
        send([pid], signal.SIGCONT)


@contextlib.contextmanager
def traced(driver: Path, pid: int) -> Iterator[None]:
    """A process stands still in a debugger."""
    with halted(driver, lambda: _seize(pid), lambda: _detach(pid)):
        yield


@contextlib.contextmanager
def halted(driver: Path, halt: Callable[[], object], go_on: Callable[[], object]) -> Iterator[None]:
    """Processes stand still, by any means."""
    _halt_outside(driver, halt, go_on)
    try:
        yield
    finally:
        go_on()


def _halt_outside(driver: Path, halt: Callable[[], object], go_on: Callable[[], object]) -> None:
    for _ in range(_TIMES):
        halt()
        if _is_passed(driver / "machine"):
            return
        go_on()
        time.sleep(_LOOK_SECONDS)
    raise AssertionError(f"in {_TIMES} attempts always in the critical section")


def send(pids: Iterable[int], number: int) -> None:
    """A signal to processes, of which some may have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def await_stop(pids: Iterable[int]) -> None:
    """Until all threads of processes that were sent SIGSTOP stand still."""
    deadline = time.monotonic() + 10
    while not all(_stands_still(pid) for pid in pids):
        assert time.monotonic() < deadline, f"not all of {pids} stand still"
        time.sleep(_LOOK_SECONDS)


def _threads(pid: int) -> set[int]:
    return {int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()}


def _seize(pid: int) -> None:
    """Those threads too that begin meanwhile."""
    seized: set[int] = set()
    while more := _threads(pid) - seized:
        for thread in more:
            _ptrace(_PTRACE_SEIZE, thread)
            _ptrace(_PTRACE_INTERRUPT, thread)
            os.waitpid(thread, _WALL)
        seized |= more


def _detach(pid: int) -> None:
    for thread in _threads(pid):
        _ptrace(_PTRACE_DETACH, thread)


def _ptrace(request: int, thread: int) -> None:
    if _LIBC.ptrace(ctypes.c_long(request), thread, None, None) != 0:
        raise OSError(ctypes.get_errno(), f"ptrace {request} of {thread}")


def _stands_still(pid: int) -> bool:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except FileNotFoundError:
        return True
    return all(_state(task / "stat") in _STILL for task in tasks)


def _state(stat: Path) -> str:
    try:
        return stat.read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def _is_passed(machine: Path) -> bool:
    """Whether the critical section was seen empty: no process that stands still is in it."""
    wanted = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, _LOCK_BYTE, 1, 0)
    with machine.open("rb") as file:
        for _ in range(_LOOKS):
            found = struct.unpack(_FLOCK, fcntl.fcntl(file, _F_OFD_GETLK, wanted))
            if found[0] == fcntl.F_UNLCK:
                return True
            time.sleep(_LOOK_SECONDS)
    return False
