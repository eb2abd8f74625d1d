"""A process of a container with a slot of its ledger, as the proxies have one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from cgpu_native._native import ffi, lib

from cgpu_native import Ledger
from cgpu_native.errors import check_status

if TYPE_CHECKING:
    from typing_extensions import Self


class AttachedLedger(Ledger):
    """A ledger with a slot for this process, or for ``pid``, which is only a label."""

    @classmethod
    def attach(cls, path: os.PathLike[str] | str, pid: int | None = None) -> Self:
        out = ffi.new("struct cgpu_ledger **")
        status = lib.cgpu_ledger_attach(os.fsencode(path), os.getpid() if pid is None else pid, out)
        check_status(status, f"open ledger {os.fspath(path)}")
        return cls(out[0], str(path))

    def charge(self, gpu: int, cap: int, size: int) -> int:
        """Charge ``size`` bytes, and return them."""
        charged = ffi.new("uint64_t *")
        status = lib.cgpu_ledger_charge(self._handle, gpu, cap, size, charged)
        check_status(status, f"charge {size} bytes on GPU {gpu}")
        return int(charged[0])

    def release(self, gpu: int, size: int) -> None:
        status = lib.cgpu_ledger_release(self._handle, gpu, size)
        check_status(status, f"release {size} bytes on GPU {gpu}")

    def read_own(self, gpu: int) -> int:
        """Return the bytes held by this process."""
        return int(lib.cgpu_ledger_own(self._handle, gpu))
