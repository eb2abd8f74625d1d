"""Ends all processes that a command started, however the command ends."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

from cgpu_env import CgpuError
from cgpu_native.system import adopt_orphans

_POLL_SECONDS = 0.01
_LIMIT_SECONDS = 10.0  # a killed process ends only after the kernel has freed what it has on a GPU


@contextlib.contextmanager
def end_at_exit() -> Iterator[None]:
    """End all processes that were started inside, including those whose parents have ended.

    Children from before are spared. While this ends processes, it ignores further interrupts.

    Raises:
        CgpuError: some cannot be killed.
    """
    adopt_orphans()
    spared = _read_children()
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        _kill_all_but(spared)


def _read_children() -> set[int]:
    """Return our children, including those that have ended and were not waited for."""
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return {int(pid) for pid in file.read().split()}


def _kill_all_but(spared: set[int]) -> None:
    """Kill our children until there are none. When a child ends, its own children become ours."""
    deadline = time.monotonic() + _LIMIT_SECONDS
    while left := _read_children() - spared:
        if time.monotonic() > deadline:
            raise _not_ended(left)
        for pid in left:
            with contextlib.suppress(OSError):  # it is gone, or another user's by now
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(_POLL_SECONDS)


def _not_ended(pids: set[int]) -> CgpuError:
    listed = ", ".join(map(str, sorted(pids)))
    return CgpuError(
        "processes that this command started did not end within "
        f"{_LIMIT_SECONDS:g} s of SIGKILL: {listed}",
        hint=f"see what holds them: ps -o pid,user,stat,wchan,args -p {listed.replace(' ', '')}",
    )
