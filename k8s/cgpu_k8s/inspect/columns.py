"""Aligns columns as Go's text/tabwriter does, with no least width and two spaces between."""

from __future__ import annotations

from itertools import groupby

_PADDING = 2


def align_columns(text: str) -> str:
    """Return ``text`` with spaces in place of its tabs.

    A cell ends with a tab; the text after a line's last tab is in no column. A column spans
    successive lines that all have it, and is as wide as its widest cell there.
    """
    lines = [line.split("\t") for line in text.split("\n")]
    for column in range(max(map(len, lines)) - 1):
        for has, run in groupby(lines, lambda cells: len(cells) - 1 > column):  # noqa: B023 (at once)
            if has:
                cells = list(run)
                width = max(len(each[column]) for each in cells) + _PADDING
                for each in cells:
                    each[column] = each[column].ljust(width)
    return "\n".join(map("".join, lines))
