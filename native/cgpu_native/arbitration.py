"""Arbitration of one GPU by a thread that decides whose turn it is.

See ``arbiter/thread/arbitration.h``. GPUs that were joined take turns together, and have one
thread. No call holds the interpreter's lock while it waits for that thread.
"""

from __future__ import annotations

import os

from cgpu_env.record import NamedTuple
from cgpu_native._native import ffi, lib
from cgpu_native.errors import check_status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from typing_extensions import Self


class Figures(NamedTuple):
    """Counters of an arbitration since its start."""

    steps: int
    """Times that it checked its containers."""
    turns: int
    """Gates that it opened."""
    cpu_ns: int
    """CPU time of its thread; if the thread serves several GPUs, this one's part."""
    tenants: int
    """Containers that it has now."""
    expired: int
    """Turns that it took from containers which did not report the end of their work."""


class Arbitration:
    """The arbitration of one GPU. It runs until it is closed."""

    def __init__(self, handle: Any) -> None:  # noqa: ANN401 - a cffi pointer
        self._handle = handle

    @classmethod
    def start(cls, policy: int, max_inst: int, prio_ratio: int) -> Self:
        """Start the thread, without any container yet: see ``begin``. ``prio_ratio`` is in percent.

        Raises:
            NativeError: if a rule is out of range.
            OSError: if no thread can be made.
        """
        out = ffi.new("struct cgpu_arbitration **")
        status = lib.cgpu_arbitration_start(policy, max_inst, prio_ratio, out)
        check_status(status, f"arbitrate by policy {policy}, {max_inst} instances, {prio_ratio} %")
        return cls(out[0])

    def add(
        self,
        limits: os.PathLike[str] | str,
        ledger: os.PathLike[str] | str,
        number: int,
        weight: int,
        high_priority: bool = False,  # noqa: FBT001, FBT002
    ) -> int:
        """Take on the container with these files, in which this GPU is number ``number``.

        One of ``weight`` 0 was promised no time. It shares what is left, by the cap in its limits.

        Returns:
            The key that names the container in later calls.

        Raises:
            FormatError: if a file is not of this release.
            NativeError: if ``number`` or ``weight`` is out of range, or no more containers fit.
            OSError: if a file cannot be opened or mapped.
        """
        key = ffi.new("uint32_t *")
        status = lib.cgpu_arbitration_add(
            self._get_handle(),
            os.fsencode(limits),
            os.fsencode(ledger),
            number,
            weight,
            int(high_priority),
            key,
        )
        check_status(status, f"arbitrate {os.fspath(limits)}")
        return int(key[0])

    def begin(self) -> None:
        """Open gates from now on. The caller has added all running containers.

        Before this call no gate opens, and gates close as their containers are added, because an
        earlier arbiter may have opened them.
        """
        lib.cgpu_arbitration_begin(self._get_handle())

    @classmethod
    def join(cls, arbitrations: Sequence[Self]) -> None:
        """Make these GPUs take turns together from now on, and with no other GPU.

        No other call for one of them may run at the same time.

        Raises:
            OSError: if no thread can be created; then nothing has changed.
        """
        handles = ffi.new(
            "struct cgpu_arbitration *[]", [cls._get_handle(each) for each in arbitrations]
        )
        status = lib.cgpu_arbitration_join(handles, len(arbitrations))
        check_status(status, f"arbitrate {len(arbitrations)} GPUs together")

    def set_rules(self, policy: int, max_inst: int, prio_ratio: int) -> None:
        """Arbitrate by other rules from now on.

        Raises:
            NativeError: if one is out of range; nothing is changed.
        """
        status = lib.cgpu_arbitration_set_rules(self._get_handle(), policy, max_inst, prio_ratio)
        check_status(status, f"arbitrate by policy {policy}, {max_inst} instances, {prio_ratio} %")

    def set_tenant(self, key: int, weight: int, high_priority: bool) -> None:  # noqa: FBT001
        """Give a container another weight or priority.

        Raises:
            NativeError: if there is no such container, or the weight is out of range.
        """
        status = lib.cgpu_arbitration_set_tenant(
            self._get_handle(), key, weight, int(high_priority)
        )
        check_status(status, f"container {key} with weight {weight}")

    def remove(self, key: int) -> None:
        """Stop arbitrating a container; it gives up whatever it held at once.

        Raises:
            NativeError: if there is no such container.
        """
        check_status(
            lib.cgpu_arbitration_remove(self._get_handle(), key), f"remove container {key}"
        )

    def read_figures(self) -> Figures:
        """Return what the thread has done so far."""
        out = ffi.new("struct cgpu_arbitration_figures *")
        lib.cgpu_arbitration_read(self._get_handle(), out)
        return Figures(out.steps, out.turns, out.cpu_ns, out.tenants, out.expired)

    def close(self) -> None:
        """Stop the thread. Gates stay as they are; processes then fall back to their own share."""
        lib.cgpu_arbitration_stop(self._handle)
        self._handle = ffi.NULL

    def _get_handle(self) -> Any:  # noqa: ANN401
        if self._handle == ffi.NULL:
            raise ValueError("the arbitration is closed")
        return self._handle

    def __enter__(self) -> Self:
        """Return the arbitration itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()
