"""The ledger (``ledger.h``): who holds how much device memory in one container."""

from __future__ import annotations

import os
import time

from cgpu_env.record import NamedTuple
from cgpu_native._native import ffi, lib
from cgpu_native.errors import check_status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from typing_extensions import Self

ANY_GPU: int = lib.CGPU_MAX_GPUS
LEDGER_VERSION: int = lib.CGPU_LEDGER_VERSION


class LedgerProcess(NamedTuple):
    """A living process that holds device memory."""

    pid: int
    """As the process itself reports it, in its own pid namespace: not to be trusted."""
    slot: int
    used_bytes: int


class Look:
    """A copy of a ledger, read at one time.

    Attributes:
        asked: the number of processes about which the kernel was asked.
        is_certain: whether the kernel was asked about all processes. If the container's locks make
            that costly, the others count as living.
    """

    def __init__(self, survey: Any) -> None:  # noqa: ANN401 - a cffi structure
        self._survey = survey
        self.asked: int = survey.asked
        self.is_certain: bool = survey.unasked == 0

    def list_processes(self, gpu: int = ANY_GPU) -> list[LedgerProcess]:
        """Return the living processes that hold memory on ``gpu``, or on any GPU."""
        found = []
        for each in self._survey.holders[0 : self._survey.count]:
            used = sum(each.used_bytes) if gpu == ANY_GPU else each.used_bytes[gpu]
            if used:
                found.append(LedgerProcess(each.pid, each.slot, used))
        return found

    def read_shared(self, gpu: int) -> dict[int, int]:
        """Return by pid how much memory each process has imported that others pay for."""
        found: dict[int, int] = {}
        for each in self._survey.holders[0 : self._survey.count]:
            if each.shared_bytes[gpu]:
                found[each.pid] = found.get(each.pid, 0) + each.shared_bytes[gpu]
        return found

    def read_imports(self, gpu: int) -> tuple[int, int]:
        """Return how many shared bytes are paid for, and how many processes have imported any."""
        return self._survey.paid_bytes[gpu], self._survey.importers[gpu]


class _Rest:
    """Until when (time.monotonic_ns) nobody asks about a ledger's processes: see observer.c.

    Its descriptor keeps the file's inode number from being reused.
    """

    def __init__(self, until: int, fd: int) -> None:
        self.until = until
        self._fd = fd

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self._fd)

    def is_over(self) -> bool:
        """Whether that time is long past, or the ledger was removed."""
        return _is_past(self.until) or os.fstat(self._fd).st_nlink == 0


_RESTS: dict[tuple[int, int], _Rest] = {}  # by device and inode, the oldest first
_REMEMBERED_NS = 60_000_000_000
_MOST_RESTS = 256  # each holds a descriptor


class Ledger:
    """An observer of a ledger. GPUs have the numbers that they have in the limits."""

    def __init__(
        self,
        handle: Any,  # noqa: ANN401 - a cffi pointer
        path: str,
    ) -> None:
        self._handle = handle
        self.path = path
        self._recalled = 0  # the time until which it rests, as this process remembers it

    @classmethod
    def observe(cls, path: os.PathLike[str] | str) -> Self:
        """Open a ledger for reading. It takes no slot, and trusts nothing in the file.

        Raises:
            FormatError: if the file is no ledger of this release.
            OSError: if it cannot be opened; ``BlockingIOError`` under a lease.
        """
        out = ffi.new("struct cgpu_ledger **")
        status = lib.cgpu_ledger_observe(os.fsencode(path), out)
        check_status(status, f"open ledger {os.fspath(path)}")
        ledger = cls(out[0], str(path))
        if _RESTS:
            ledger._recall_rest()
        return ledger

    def read_used(self, gpu: int) -> int:
        """Return the bytes held by all living processes."""
        used = int(lib.cgpu_ledger_used(self._handle, gpu))
        self._remember_rest()
        return used

    def read_total(self, gpu: int) -> int:
        """Return the sum that charges are compared with: ``read_used``, unless tampered with."""
        return int(lib.cgpu_ledger_total(self._handle, gpu))

    def read_refused(self, gpu: int) -> int:
        """Return how many requests were refused since the ledger was made."""
        return int(lib.cgpu_ledger_refused(self._handle, gpu))

    def list_processes(self, gpu: int = ANY_GPU) -> list[LedgerProcess]:
        """Return the living processes that hold memory on ``gpu``, or on any GPU.

        Raises:
            OSError: if the file can no longer be opened.
            FormatError: if it was cut short.
        """
        return self.look().list_processes(gpu)

    def look(self) -> Look:
        """Return which processes live, and what each holds on all GPUs.

        Raises:
            OSError: if the file can no longer be opened.
            FormatError: if it was cut short.
        """
        survey = ffi.new("struct cgpu_survey *")
        status = lib.cgpu_ledger_survey(self._handle, survey)
        self._remember_rest()
        check_status(status, f"list the processes of {self.path}")
        return Look(survey)

    def _recall_rest(self) -> None:
        """Pass to this observer until when to ask nothing, because earlier reads were costly."""
        try:
            rest = _RESTS.get(_identify_file(self.path))
        except OSError:  # it is gone
            return
        if rest is not None:
            self._recalled = rest.until
            lib.cgpu_ledger_rest(self._handle, rest.until)

    def _remember_rest(self) -> None:
        """Note for later observers until when to ask nothing, because this read was costly."""
        until = lib.cgpu_ledger_rests(self._handle)
        if until == self._recalled:
            return
        self._recalled = until
        fd = lib.cgpu_ledger_reopen(self._handle) if until else -1
        if fd >= 0:
            _forget_rests()
            _RESTS.pop(_identify_file(fd), None)
            for oldest in list(_RESTS)[: max(0, len(_RESTS) + 1 - _MOST_RESTS)]:
                _RESTS.pop(oldest, None)
            _RESTS[_identify_file(fd)] = _Rest(until, fd)

    def close(self) -> None:
        """Close the ledger; further calls find nothing."""
        lib.cgpu_ledger_detach(self._handle)
        self._handle = ffi.NULL

    def __enter__(self) -> Self:
        """Return the observer itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


def is_costly(path: os.PathLike[str] | str) -> bool:
    """Whether the ledger's locks made a read by this process costly in the last minute."""
    _forget_rests()
    try:
        return _identify_file(path) in _RESTS
    except OSError:  # it is gone
        return False


def _forget_rests() -> None:
    # go through a copy, made in one step, because other threads read other ledgers
    for file in [file for file, rest in list(_RESTS.items()) if rest.is_over()]:
        _RESTS.pop(file, None)


def _is_past(until: int) -> bool:
    return time.monotonic_ns() > until + _REMEMBERED_NS


def _identify_file(path: os.PathLike[str] | str | int) -> tuple[int, int]:
    facts = os.stat(path)  # noqa: PTH116 - the start path
    return facts.st_dev, facts.st_ino
