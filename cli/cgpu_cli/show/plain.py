"""The screen of ``cgpu top`` on a terminal that shows only ASCII."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.segment import Segment
from textual.filter import LineFilter

if TYPE_CHECKING:
    from textual.color import Color

_DRAWN = str.maketrans("─│╭╮╰╯▁▂▃▄▅▆▇█▏▎▍▌▋▊▉", "-|++++_.-:=+*#   ####")


class Plain(LineFilter):
    """Replaces frames and bars by similar characters, and all others by question marks."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the segments of a line. Each keeps its width."""
        del background  # colours stay
        return [Segment(_to_ascii(text), style, control) for text, style, control in segments]


def _to_ascii(text: str) -> str:
    if text.isascii():
        return text
    drawn = text.translate(_DRAWN)
    return "".join(each if each.isascii() else "?" * cell_len(each) for each in drawn)
