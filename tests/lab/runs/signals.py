"""What this run of pytest inherits, and nothing that it starts: ignored signals, and a umask.

``nohup make test &`` ignores SIGHUP, and a shell without job control SIGINT and SIGQUIT; whoever
is started inherits that. A handler is not inherited: what tests start has the default.

Under a umask of 077 nobody but root could read the folders that tests make for other users. Tests
of what a program does under another umask set that one.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Go on, as whoever started the run wants it."""


def keep_from_children() -> None:
    """Handle what is ignored, let every signal through, and take the usual umask."""
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, _nothing)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o022)
