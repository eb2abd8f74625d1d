"""The ledger (``ledger.h``): who holds how much device memory in one container."""

from __future__ import annotations

import os

from cgpu_env.record import NamedTuple
from cgpu_native._native import ffi, lib
from cgpu_native.errors import check

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from typing_extensions import Self

ANY_GPU: int = lib.CGPU_MAX_GPUS
SLOTS: int = lib.CGPU_LEDGER_SLOTS
LEDGER_VERSION: int = lib.CGPU_LEDGER_VERSION


class Process(NamedTuple):
    """A living process that holds device memory."""

    pid: int
    """As the process itself says, in its own pid namespace: not to be believed."""
    slot: int
    used_bytes: int


def create_ledger(directory: int | os.PathLike[str] | str, name: str) -> None:
    """Make an empty ledger file ``name`` in ``directory``, a path or an open descriptor of it.

    Raises:
        OSError: if the file exists or cannot be made; nothing is left then.
    """
    if isinstance(directory, int):
        check(lib.cgpu_ledger_create(directory, os.fsencode(name)), f"make ledger {name}")
        return
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        create_ledger(fd, name)
    finally:
        os.close(fd)


class Ledger:
    """One process's attachment to a ledger, or an observer; GPUs by their place in the limits."""

    def __init__(self, handle: Any, path: str) -> None:  # noqa: ANN401 - a cffi pointer
        self._handle = handle
        self.path = path

    @classmethod
    def attach(cls, path: os.PathLike[str] | str, pid: int | None = None) -> Self:
        """Take a slot for this process (or for ``pid``, which is only a label).

        Raises:
            FullError: if all slots are taken by living processes.
            FormatError: if the file is no ledger of this release.
            OSError: if it cannot be opened or mapped.
        """
        return cls(
            _open(lib.cgpu_ledger_attach, path, os.getpid() if pid is None else pid), str(path)
        )

    @classmethod
    def observe(cls, path: os.PathLike[str] | str) -> Self:
        """Look at a ledger without a slot and without believing what is in it.

        Raises:
            FormatError: if the file is no ledger of this release.
            OSError: if it cannot be opened.
        """
        return cls(_open(lib.cgpu_ledger_observe, path), str(path))

    def charge(self, gpu: int, cap: int, size: int) -> int:
        """Charge ``size`` bytes, and return them.

        Raises:
            OverCapError: if ``size`` does not fit under ``cap``; nothing is charged.
        """
        charged = ffi.new("uint64_t *")
        status = lib.cgpu_ledger_charge(self._handle, gpu, cap, size, charged)
        check(status, f"charge {size} bytes on GPU {gpu}")
        return int(charged[0])

    def release(self, gpu: int, size: int) -> None:
        """Give ``size`` bytes of this process back.

        Raises:
            NativeError: if the process holds less; nothing is changed.
        """
        check(
            lib.cgpu_ledger_release(self._handle, gpu, size), f"release {size} bytes on GPU {gpu}"
        )

    def used(self, gpu: int) -> int:
        """Return the bytes held by all living processes."""
        return int(lib.cgpu_ledger_used(self._handle, gpu))

    def total(self, gpu: int) -> int:
        """Return the sum that charges are compared with; ``used`` where nobody tampered with it."""
        return int(lib.cgpu_ledger_total(self._handle, gpu))

    def own(self, gpu: int) -> int:
        """Return the bytes held by this process."""
        return int(lib.cgpu_ledger_own(self._handle, gpu))

    def refused(self, gpu: int) -> int:
        """Return how many requests were refused since the ledger was made."""
        return int(lib.cgpu_ledger_refused(self._handle, gpu))

    def processes(self, gpu: int = ANY_GPU) -> list[Process]:
        """Return the living processes that hold memory on ``gpu``, or on any.

        Raises:
            OSError: if the file is not to be opened any more.
            FormatError: if it was cut short.
        """
        found = ffi.new("struct cgpu_process[]", SLOTS)
        count = ffi.new("size_t *")
        status = lib.cgpu_ledger_processes(self._handle, gpu, found, SLOTS, count)
        check(status, f"list the processes of {self.path}")
        return [Process(e.pid, e.slot, e.used_bytes) for e in found[0 : min(count[0], SLOTS)]]

    def close(self) -> None:
        """Give back the slot with all its charges; further calls find nothing attached."""
        lib.cgpu_ledger_detach(self._handle)
        self._handle = ffi.NULL

    def __enter__(self) -> Self:
        """Return the attachment itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


def _open(function: Any, path: os.PathLike[str] | str, *arguments: int) -> Any:  # noqa: ANN401
    out = ffi.new("struct cgpu_ledger **")
    check(function(os.fsencode(path), *arguments, out), f"open ledger {os.fspath(path)}")
    return out[0]
