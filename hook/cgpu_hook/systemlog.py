"""Writes to the system's log, the only log that a hook has while a container starts."""

from __future__ import annotations

import syslog

from cgpu_env.logline import format_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

ERROR, WARNING = syslog.LOG_ERR, syslog.LOG_WARNING


def log(priority: int, event: str, fields: Mapping[str, object]) -> None:
    """Write one line; ``priority`` is one of the constants above."""
    syslog.openlog("cgpu")
    syslog.syslog(priority, format_line(event, fields))
