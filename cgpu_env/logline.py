"""A line of a log: ``event key=value ...``. It is one line, whatever the values contain."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST_VALUE = 400  # characters; a path or a sentence fits
_BARE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:/@%+,-[]")


def format_line(event: str, fields: Mapping[str, object]) -> str:
    """Return the line without its end. It is printable ASCII, so no value can add a second line.

    A value with other characters than letters, digits and ``_.:/@%+,-[]`` is a JSON string.
    """
    return " ".join([event, *(f"{key}={quote_value(value)}" for key, value in fields.items())])


def quote_value(value: object) -> str:
    """Return ``value`` in the form that it has after ``key=``; a long one is cut."""
    text = str(int(value)) if isinstance(value, bool) else str(value)
    if len(text) > LONGEST_VALUE:
        text = text[:LONGEST_VALUE] + "..."
    if text and _BARE.issuperset(text):
        return text
    import json  # noqa: PLC0415 (only errors need it, and the start path cannot wait for it)

    return json.dumps(text).replace("\x7f", "\\u007f")


def locate_error(error: BaseException) -> str:
    """Return ``file.py:line``, where an internal error was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "an unknown place"
    return f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}"
