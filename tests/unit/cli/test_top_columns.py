"""The table of cgpu top: no part of a column is seen, which could be half a number (CLI-3)."""

from __future__ import annotations

import asyncio
from itertools import accumulate
from typing import TYPE_CHECKING

import pytest
from rich.text import Text
from textual.app import App

from cgpu_cli.show.board import Columns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from textual.app import ComposeResult
    from textual.pilot import Pilot

pytestmark = [pytest.mark.unit, pytest.mark.long]  # textual draws each screen: 0.3 s

HEADS = ("Container", "GPU", "Used / cap", "Limit")
CELLS = ("run-1234", "0", "3107 / 6144 MiB", "40.0%")


class Screen(App[None]):
    """Nothing but the table."""

    def compose(self) -> ComposeResult:
        """With one row."""
        table = Columns(cursor_type="row")
        table.add_columns(*HEADS)
        table.add_row(*(Text(cell, justify="right") for cell in CELLS))
        yield table


def play(act: Callable[[Columns, list[int], Pilot[None]], Awaitable[None]]) -> None:
    """Let ``act`` use a table that has room; it gets the columns' ends too."""

    async def run() -> None:
        async with Screen().run_test(size=(80, 24)) as pilot:
            await pilot.pause()
            table = pilot.app.query_one(Columns)
            widths = (column.get_render_width(table) for column in table.ordered_columns)
            await act(table, [*accumulate(widths)], pilot)

    asyncio.run(run())


def lines(table: Columns) -> list[str]:
    """The head and the row."""
    return [table.render_line(y).text for y in range(2)]


def test_at_no_width_is_a_part_of_a_column_seen() -> None:
    async def act(table: Columns, ends: list[int], pilot: Pilot[None]) -> None:
        whole = lines(table)
        for width in range(ends[0], ends[-1]):
            await pilot.resize_terminal(width, 24)
            await pilot.pause()
            last = max(end for end in ends if end <= width + 1)  # but for the space beside it
            assert lines(table) == [line[: min(last, width)].ljust(width) for line in whole]

    play(act)


def test_scrolling_shows_no_part_of_a_column() -> None:
    async def act(table: Columns, ends: list[int], pilot: Pilot[None]) -> None:
        whole = lines(table)
        await pilot.resize_terminal(ends[2], 24)
        await pilot.pause()
        table.scroll_to(x=1, animate=False, immediate=True)
        shown = (line[ends[0] : ends[2]].rjust(ends[2] - 1) for line in whole)
        assert lines(table) == [line.ljust(ends[2]) for line in shown]

    play(act)


def test_keys_scroll_by_a_column() -> None:
    async def act(table: Columns, ends: list[int], pilot: Pilot[None]) -> None:
        await pilot.resize_terminal(ends[2] - ends[1], 24)
        await pilot.pause()
        table.focus()
        for key, x in (("right", ends[0]), ("right", ends[1]), ("left", ends[0]), ("left", 0)):
            await pilot.press(key)
            assert table.scroll_target_x == x

    play(act)
