"""A gate that a test opens and closes by hand, and what the processes behind it say."""

from __future__ import annotations

import ctypes
import mmap
import platform
import threading
import time
from typing import TYPE_CHECKING, Any

from cgpu_native._native import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from typing_extensions import Self

CLOSED, OPEN, PRESSED, FREE = 0, 1, 2, 3
_FUTEX = {"x86_64": 202, "aarch64": 98}[platform.machine()]
_WAKE = 1
_ALL = 1 << 30
_PATIENCE = 30.0


def _map(path: Path) -> mmap.mmap:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


class Gate:
    """Stands in for the arbiter of one GPU and one container."""

    def __init__(self, base: Path, gpu: int = 0, state: int = CLOSED) -> None:
        self._pages = [ffi.from_buffer(_map(base / name)) for name in ("limits", "ledger")]
        self._limits = ffi.cast("struct cgpu_limits *", self._pages[0])
        self._ledger = ffi.cast("struct cgpu_ledger_file *", self._pages[1])
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._gpu = gpu
        self._stopped = threading.Event()
        self.alive = True
        self.limits = self._limits.gpus[gpu]
        self.set(state)
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self.limits.heartbeat_ns = time.monotonic_ns()
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._stopped.wait(0.03):
            if self.alive:
                self.limits.heartbeat_ns = time.monotonic_ns()

    @property
    def word(self) -> int:
        return int(self.limits.gate)

    @property
    def bell(self) -> int:
        """How often processes have rung."""
        return int(self._ledger.gpus[self._gpu].bell)

    @property
    def stalls(self) -> tuple[int, int]:
        """How often work stalled, and for how long the work did that has ended."""
        gpu = self._ledger.gpus[self._gpu]
        return int(gpu.stalls), int(gpu.stalled_ns)

    def set(self, state: int) -> int:
        """A new gate word; whoever waits for it is woken."""
        self.limits.gate = (self.word // 8 + 1) * 8 + state
        address = int(ffi.cast("uintptr_t", ffi.addressof(self.limits, "gate")))
        self._libc.syscall(_FUTEX, ctypes.c_void_p(address), _WAKE, _ALL, None, None, 0)
        return self.word

    def works(self) -> list[Any]:
        """What each process says about its work."""
        entries = [self._ledger.works[i] for i in range(lib.CGPU_LEDGER_WORKS)]
        return [work for work in entries if work.owner != 0 and work.gpu == self._gpu]

    @property
    def work(self) -> Any:
        """What the only process says."""
        (work,) = self.works()
        return work

    def fill_works(self) -> None:
        """Take every entry for a process that nobody can tell to be dead."""
        for i in range(lib.CGPU_LEDGER_WORKS):
            self._ledger.works[i].owner = lib.CGPU_LEDGER_SLOTS * 2
        self._ledger.work_bound = lib.CGPU_LEDGER_WORKS

    def wait(self, condition: Callable[[], Any]) -> None:
        """Until ``condition`` is true."""
        end = time.monotonic() + _PATIENCE
        while not condition():
            assert time.monotonic() < end, [str(work.active) for work in self.works()]
            time.sleep(0.002)

    def wait_for_waiting(self) -> None:
        """Until a thread waits at the gate."""
        self.wait(lambda: any(work.waiting for work in self.works()))

    def wait_for_quiet(self) -> None:
        """Until all that was launched has ended, as the processes say."""
        self.wait(lambda: all(work.active == 0 for work in self.works()))


__all__ = ["CLOSED", "FREE", "OPEN", "PRESSED", "Gate"]
