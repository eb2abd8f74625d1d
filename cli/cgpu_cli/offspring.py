"""No process that a command starts outlives the command, however that ends."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

from cgpu_cli import libc

if TYPE_CHECKING:
    from collections.abc import Iterator

_POLL_SECONDS = 0.01


@contextlib.contextmanager
def ended() -> Iterator[None]:
    """End all processes that were started inside, also those whose parents have ended.

    Further interrupts are ignored meanwhile: it takes no longer than a kill.
    """
    libc.adopt_orphans()
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        with contextlib.suppress(ChildProcessError):  # no more of them
            while True:
                _kill_children()


def _kill_children() -> None:
    """Kill our children, whose own then become ours, and wait a little for one of them.

    Raises:
        ChildProcessError: there are none.
    """
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        for pid in file.read().split():
            os.kill(int(pid), signal.SIGKILL)
    if os.waitpid(-1, os.WNOHANG)[0] == 0:
        time.sleep(_POLL_SECONDS)
