"""cgpu top: what it shows of each look, and how it obeys (CLI-3, CLI-5)."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest
from textual.widgets import DataTable, Static

from cgpu_cli.show.board import _HELP, Board, Columns
from cgpu_cli.show.trend import REMEMBERED, Trend, draw_bar, draw_sparks
from cgpu_env import CgpuError, GpuShare
from cgpu_node.facts.node import Node, NodeGpu
from cgpu_node.settings.rules import Rules
from cgpu_node.view.usage import usage_of
from cgpu_node.view.view import Compute, GpuUse, Usage, Use

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from textual.pilot import Pilot

pytestmark = [pytest.mark.unit, pytest.mark.long]  # textual draws each board: 0.3 s

MIB = 1 << 20
UUIDS = [f"GPU-0000000{i}-1111-2222-3333-444444444444" for i in range(2)]
NODE = Node(
    "1",
    "/nowhere",
    {},
    {},
    tuple(NodeGpu(i, uuid, "Tesla T4 [x]", 15109 * MIB, 0, ()) for i, uuid in enumerate(UUIDS)),
    (),
)


def use(
    name: str,
    *,
    gpu: int = 0,
    weight: int = 1,
    compute: float | None = 10.0,
    throttled_ns: int = 0,
    used: int = 0,
    refused: int = 0,
) -> Use:
    """A session of a program of this name."""
    share = GpuShare(gpu, UUIDS[gpu], 1000 * MIB)
    its = Compute(50.0, compute, 0, compute is not None, 10.0, 0, throttled_ns, None)
    held = GpuUse(*share, used * MIB, (), its, refused, promised_bytes=share.cap_bytes)
    return Use(name, "session", name, (name,), weight, False, 6, (held,))  # noqa: FBT003


def seen(*uses: Use) -> Usage:
    """A look at a node with these."""
    return usage_of(NODE, uses, lambda _: Rules())


class Looks:
    """What there is to see; raises what it is given to raise."""

    def __init__(self, *uses: Use, notes: tuple[str, ...] = ()) -> None:
        self.uses, self.notes = uses, notes
        self.error: CgpuError | None = None
        self.count = 0

    def __call__(self) -> Usage:
        self.count += 1
        if self.error is not None:
            raise self.error
        return seen(*self.uses)._replace(notes=self.notes)


def play(
    looks: Looks,
    act: Callable[[Board, Pilot[None]], Awaitable[None]],
    size: tuple[int, int] = (180, 40),
    *,
    is_ascii: bool = False,
) -> Board:
    """Let ``act`` use a board that looks every 250 ms."""
    board = Board(looks, 0.25, is_ascii=is_ascii)

    async def run() -> None:
        async with board.run_test(size=size) as pilot:
            await until(pilot, lambda: board.looks > 0)
            await act(board, pilot)

    asyncio.run(run())
    return board


async def until(pilot: Pilot[None], condition: Callable[[], object]) -> None:
    for _ in range(500):
        await pilot.pause(0.01)
        if condition():
            return
    pytest.fail("it does not come true")


def ids(board: Board) -> list[str]:
    """The containers from top to bottom."""
    table = board.query_one(DataTable)
    return [str(table.get_row_at(row)[0]) for row in range(table.row_count)]


def state(board: Board) -> str:
    return str(board.query_one("#state", Static).content)


THREE = (
    use("a", compute=10, used=300, weight=2, gpu=1),
    use("b", compute=30, used=100, weight=1),
    use("c", compute=20, used=200, weight=3, gpu=1),
)


def test_what_could_not_be_found_out_is_below_the_gpus_in_a_narrow_terminal_too() -> None:
    note = "root's server does not answer, so much is not shown; " + "it " * 20 + "ends"

    async def act(board: Board, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: note in state(board))
        await until(pilot, lambda: board.query_one("#state", Static).size.height > 1)

    play(Looks(*THREE, notes=(note,)), act, size=(80, 24))


def screen(board: Board) -> list[str]:
    """The lines of the terminal."""
    return [strip.text for strip in board.screen._compositor.render_strips()]  # noqa: SLF001


def test_a_terminal_of_80_columns_shows_the_help_and_wraps_no_line() -> None:
    async def act(board: Board, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: screen(board)[-1].startswith("? help q quit c compute "))
        lines = screen(board)
        assert lines[-1].rstrip().endswith("space pause")
        assert sum("MiB held, 2000MiB promised of 15109MiB" in line for line in lines) == 1
        await pilot.press("question_mark")
        await pilot.pause()
        lines = screen(board)
        assert [line.strip() for line in lines[1:-1] if line.strip()] == [
            line.rstrip() for line in _HELP.splitlines() if line
        ]

    play(Looks(*THREE), act, size=(80, 24))


def test_a_terminal_without_more_than_ascii_gets_no_more() -> None:
    async def act(board: Board, _: Pilot[None]) -> None:
        lines = screen(board)
        assert all(map(str.isascii, lines))
        assert lines[0].startswith("+- GPU 0  Tesla T4 [x] ---")
        assert any("???  " in line and " ###" in line for line in lines)
        assert all(len(line) == 180 for line in lines)

    looks = Looks(use("äж漢", compute=30))
    play(looks, act, is_ascii=True)


@pytest.mark.parametrize(
    ("keys", "order"),
    [
        ("", "bca"),
        ("m", "acb"),
        ("n", "abc"),
        ("w", "cab"),
        ("g", "bca"),
        ("nr", "cba"),
        ("nrr", "abc"),
        ("nrc", "bca"),
    ],
)
def test_keys_sort_the_table(keys: str, order: str) -> None:
    async def act(board: Board, pilot: Pilot[None]) -> None:
        await pilot.press(*keys)
        await pilot.pause()
        assert ids(board) == list(order)

    play(Looks(*THREE), act)


@pytest.mark.parametrize("error", [None, CgpuError("gone")])
@pytest.mark.parametrize("part", ["gpus", "state", "containers"])
def test_a_look_may_end_while_the_screen_goes(part: str, error: CgpuError | None) -> None:
    looks = Looks(*THREE)

    async def act(board: Board, pilot: Pilot[None]) -> None:
        await board.query_one(f"#{part}").remove()
        looks.error, before = error, looks.count
        await until(pilot, lambda: looks.count > before + 1)

    play(looks, act)


def test_a_click_on_a_head_sorts_and_one_more_reverses() -> None:
    async def act(board: Board, pilot: Pilot[None]) -> None:
        await pilot.click(DataTable, offset=(2, 0))
        await until(pilot, lambda: ids(board) == list("abc"))
        await pilot.click(DataTable, offset=(2, 0))
        await until(pilot, lambda: ids(board) == list("cba"))
        assert state(board) == "by name, reversed"

    play(Looks(*THREE), act)


def test_containers_come_and_go_under_the_cursor() -> None:
    looks = Looks(*THREE)

    async def act(board: Board, pilot: Pilot[None]) -> None:
        await pilot.press("n", "down", "down")
        assert board.query_one(DataTable).cursor_row == 2
        looks.uses = THREE[1:]
        await until(pilot, lambda: ids(board) == list("bc"))
        assert board.query_one(DataTable).cursor_row == 1, "still on c"
        looks.uses = ()
        await until(pilot, lambda: ids(board) == [])

    play(looks, act)


def test_a_pause_stops_the_looks_and_no_key() -> None:
    looks = Looks(*THREE)

    async def act(board: Board, pilot: Pilot[None]) -> None:
        await pilot.press("space")
        await until(pilot, lambda: not any(board.workers))
        count = looks.count
        await pilot.pause(0.6)
        assert looks.count == count
        assert state(board) == "by compute  |  paused"
        await pilot.press("n")
        assert ids(board) == list("abc")
        await pilot.press("space")
        await until(pilot, lambda: looks.count > count)

    play(looks, act)


def test_a_node_that_fails_is_told_and_what_was_seen_stays() -> None:
    looks = Looks(*THREE)

    async def act(board: Board, pilot: Pilot[None]) -> None:
        looks.error = CgpuError("no \x1bdriver")
        await until(pilot, lambda: state(board) == r"by compute  |  no \x1bdriver")
        assert ids(board) == list("bca")
        looks.error = None
        await until(pilot, lambda: state(board) == "by compute")

    play(looks, act)


def test_every_gpu_has_a_panel_with_what_its_containers_hold() -> None:
    async def act(board: Board, pilot: Pilot[None]) -> None:
        await pilot.pause()
        first, second = board.query(".gpu").results(Static)
        assert "1 of 20 containers" in str(first.content)
        assert " 30.0%" in str(first.content)
        assert "500MiB held, 2000MiB promised of 15109MiB" in str(second.content)
        assert str(second.border_title) == r"GPU 1  Tesla T4 \[x]"

    play(Looks(*THREE), act)


def test_more_than_three_gpus_have_a_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = tuple(
        NodeGpu(i, f"{UUIDS[0][:-1]}{i}" if i else UUIDS[0], "NVIDIA H100 80GB HBM3", MIB, 0, ())
        for i in range(4)
    )
    monkeypatch.setattr(sys.modules[__name__], "NODE", NODE._replace(gpus=gpus))

    async def act(board: Board, pilot: Pilot[None]) -> None:
        await pilot.pause()
        panels = [*board.query(".gpu").results(Static)]
        assert [panel.size.height for panel in panels] == [1] * 4
        texts = [str(panel.content) for panel in panels]
        assert texts[0].startswith("GPU 0  NVIDIA H100 80GB  ")
        assert " 30.0%  memory " in texts[0]
        assert texts[0].endswith("  1 of 20")
        assert {len(text) for text in texts} == {len(texts[0])}
        assert len(texts[0]) <= 78

    play(Looks(use("b", compute=30)), act, (80, 24))


def test_at_80_columns_memory_is_seen() -> None:
    async def act(board: Board, pilot: Pilot[None]) -> None:
        await pilot.pause()
        table = board.query_one(Columns)
        ends, end = {}, 0
        for column in table.ordered_columns:
            end += column.get_render_width(table)
            ends[str(column.label)] = end
        assert ends["Memory"] <= 80
        assert ends["Memory"] < ends["History"]

    play(Looks(use("a-name-that-is-longer-than-there-is-room")), act, (80, 24))


def test_a_question_mark_explains_the_keys_and_columns() -> None:
    looks = Looks(*THREE)

    async def act(board: Board, pilot: Pilot[None]) -> None:
        table, listed = board.query_one(DataTable), board.query_one("#help", Static)
        for opening, closing in (("question_mark", "question_mark"), ("question_mark", "escape")):
            assert (table.display, listed.display) == (True, False)
            await pilot.press(opening)
            await until(pilot, lambda: (table.display, listed.display) == (False, True))
            count = looks.count
            await until(pilot, lambda: looks.count > count)  # noqa: B023 (called at once)
            await pilot.press(closing)
            await until(pilot, lambda: table.display)
        sentence = str(listed.content)
        assert all(f"\n{name} " in sentence for name in ("Compute", "Memory", "History"))

    play(looks, act, (80, 24))


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
def test_a_key_quits_also_the_help(key: str) -> None:
    async def act(_: Board, pilot: Pilot[None]) -> None:
        await pilot.press("question_mark", key)

    assert play(Looks(*THREE), act).return_code == 0


def test_what_a_container_calls_itself_is_no_markup() -> None:
    """REL-5."""

    async def act(board: Board, pilot: Pilot[None]) -> None:
        await pilot.pause()
        name = board.query_one(DataTable).get_row_at(0)[1]
        assert str(name) == r"[red]x\x1b[0m"

    play(Looks(use("[red]x\x1b[0m")), act)


def test_q_quits_with_status_zero() -> None:
    async def act(_: Board, pilot: Pilot[None]) -> None:
        await pilot.press("q")

    assert play(Looks(*THREE), act).return_code == 0


def test_rows_remember_and_forget() -> None:
    now = 0.0
    trend = Trend(lambda: now)
    for step in range(REMEMBERED + 5):
        now = float(step)
        looked = use("a", compute=float(step % 100), throttled_ns=step * 250_000_000)
        (row,) = trend.make_rows(seen(looked))
        assert row.throttled == (None if step == 0 else 25.0)
    assert len(row.history) == REMEMBERED
    assert row.history[-1] == row.compute == (REMEMBERED + 4) % 100
    assert trend.make_rows(seen()) == []
    (row,) = trend.make_rows(seen(use("a")))
    assert row.history == (10.0,)
    assert row.throttled is None


def test_figures_that_went_back_are_no_part_of_the_time() -> None:
    """A server that is started again counts anew."""
    now = 0.0
    trend = Trend(lambda: now)
    for seconds, throttled in enumerate((5_000_000_000, 0, 9_000_000_000)):
        now = float(seconds)
        (row,) = trend.make_rows(seen(use("a", throttled_ns=throttled)))
        assert row.throttled == (None, None, 100.0)[seconds]


@pytest.mark.parametrize(
    ("percent", "drawn"),
    [(0, "    "), (50, "██  "), (100, "████"), (250, "████"), (-1, "    "), (3.2, "▏   ")],
)
def test_a_bar_is_as_long_as_its_part(percent: float, drawn: str) -> None:
    assert draw_bar(percent, 4) == drawn


def test_a_history_has_gaps_where_nothing_was_measured() -> None:
    assert draw_sparks((0, None, 50, 100), 6) == "  ▁ ▅█"
    assert draw_sparks((0, None, 50, 100), 2) == "▅█"
