"""The server's log: ``event key=value ...`` lines, a limited number of each event per minute.

It is written to stderr, which a service manager keeps. If a container's creation started the
server, it is a file of limited size. ``docs/logs.md`` lists all events; a test compares it with the
calls.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from typing import NamedTuple

from cgpu_env.logline import format_line, locate_error

_LARGEST_FILE = 1 << 18  # and one older file of the same size
_MOST, _SECONDS = 20, 60.0
_PRIORITIES = {logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3}  # sd-daemon(3)


class _Kind(NamedTuple):
    level: int
    since: float
    times: int


class EventLog:
    """Writes at most ``most`` lines of an event in ``seconds``, then how many it left out.

    That number is written when the time is over, with the next event or by ``flush``, whichever
    comes first. Any thread may write.
    """

    def __init__(
        self,
        logger: logging.Logger,
        most: int = _MOST,
        seconds: float = _SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._most, self._seconds, self._clock = most, seconds, clock
        self._kinds: dict[str, _Kind] = {}
        self._lock = threading.Lock()

    def info(self, event: str, **fields: object) -> None:
        """Log that something happens."""
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, *, do: str, **fields: object) -> None:
        """Log a problem that stops nothing. ``do``: what helps."""
        self._log(logging.WARNING, event, {**fields, "do": do})

    def error(self, event: str, *, do: str, **fields: object) -> None:
        """Log that a part of the server does not work. ``do``: what helps."""
        self._log(logging.ERROR, event, {**fields, "do": do})

    def flush(self, *, everything: bool = False) -> None:
        """Log how many lines were left out, of events whose time is over or of ``everything``."""
        now = self._clock()
        with self._lock:
            over = {
                event: kind
                for event, kind in self._kinds.items()
                if everything or now - kind.since >= self._seconds
            }
            for event in over:
                del self._kinds[event]
        for event, kind in over.items():
            if kind.times > self._most:
                more = {"event": event, "count": kind.times - self._most}
                self._logger.log(kind.level, "%s", format_line("more", more))

    def _log(self, level: int, event: str, fields: dict[str, object]) -> None:
        self.flush()
        with self._lock:
            kind = self._kinds.get(event, _Kind(level, self._clock(), 0))
            self._kinds[event] = kind._replace(times=kind.times + 1)
        if kind.times < self._most:
            self._logger.log(level, "%s", format_line(event, fields))


log = EventLog(logging.getLogger("cgpud"))


class _Form(logging.Formatter):
    """Formats each record as one line, including records of libraries."""

    def __init__(self, form: str, *, prioritised: bool = False) -> None:
        super().__init__(form)
        self._prioritised = prioritised

    def format(self, record: logging.LogRecord) -> str:
        if record.name != "cgpud":
            record = _to_own_record(record)
        text = super().format(record)
        return f"<{_PRIORITIES.get(record.levelno, 3)}>{text}" if self._prioritised else text


def _to_own_record(record: logging.LogRecord) -> logging.LogRecord:
    """Return a library's record as an event of ours."""
    fields: dict[str, object] = {"library": record.name, "error": record.getMessage()}
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        fields["error"] = f"{record.getMessage()}: {error!r} at {locate_error(error)}"
    values = record.__dict__ | {
        "msg": format_line("library_says", fields),
        "args": (),
        "exc_info": None,
    }
    return logging.makeLogRecord(values)


def open_log(path: str | None) -> None:
    """Log to the file at ``path``, or to stderr.

    Raises:
        OSError: the file cannot be opened.
    """
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    form = _Form("cgpud: %(levelname)s %(message)s", prioritised=_is_journal(sys.stderr.fileno()))
    if path is not None:
        handler = RotatingFileHandler(path, maxBytes=_LARGEST_FILE, backupCount=1)
        form = _Form("%(asctime)s %(process)d %(levelname)s %(message)s")
    handler.setFormatter(form)
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("cgpud").setLevel(logging.INFO)
    logging.raiseExceptions = False  # a full file system needs no second report


def is_open() -> bool:
    """Whether the log was opened already."""
    return bool(logging.getLogger().handlers)


def _is_journal(fd: int) -> bool:
    """Whether systemd's journal reads ``fd``. It takes the level from the beginning of a line."""
    try:
        facts = os.fstat(fd)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{facts.st_dev}:{facts.st_ino}"
