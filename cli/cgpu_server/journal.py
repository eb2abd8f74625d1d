"""The server's log: ``event key=value ...`` lines, of each kind only so many a minute.

To stderr, which a service manager keeps; to a file of bounded size where a container's creation
started the server.
"""

from __future__ import annotations

import logging
import sys
import time
from logging.handlers import RotatingFileHandler
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("cgpud")

_LARGEST_FILE = 1 << 18  # and one older file of the same size
_MOST, _SECONDS = 20, 60.0


class Limiter(logging.Filter):
    """Lets at most ``most`` messages of a kind through in a time, and says how many it dropped."""

    def __init__(
        self,
        most: int = _MOST,
        seconds: float = _SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._most, self._seconds, self._clock = most, seconds, clock
        self._seen: dict[str, tuple[float, int]] = {}  # kind: since when, how many

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log; messages are of one kind if their text before formatting is the same."""
        now, kind = self._clock(), str(record.msg)
        begun, count = self._seen.get(kind, (now, 0))
        if now - begun >= self._seconds:
            if count > self._most:
                record.msg = f"{kind} (and {count - self._most} more)"
            begun, count = now, 0
        self._seen[kind] = begun, count + 1
        return count < self._most


def open_log(path: str | None) -> None:
    """Log to the file at ``path``, or to stderr.

    Raises:
        OSError: the file cannot be opened.
    """
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    form = "cgpud: %(levelname)s %(message)s"
    if path is not None:
        handler = RotatingFileHandler(path, maxBytes=_LARGEST_FILE, backupCount=1)
        form = "%(asctime)s %(process)d %(levelname)s %(message)s"
    handler.setFormatter(logging.Formatter(form))
    handler.addFilter(Limiter())
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
