"""Signals that this run of pytest inherits as ignored, which nothing that it starts does.

``nohup make test &`` ignores SIGHUP, and a shell without job control SIGINT and SIGQUIT; whoever
is started inherits that. A handler is not inherited: what tests start has the default.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Go on, as whoever started the run wants it."""


def keep_from_children() -> None:
    """Handle what is ignored, and let every signal through."""
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, _nothing)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
