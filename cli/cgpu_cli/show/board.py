"""The screen of ``cgpu top``: a panel for each GPU, and a table of the containers."""

from __future__ import annotations

import asyncio
import select
import signal
import sys
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar

from rich.markup import escape
from rich.text import Text
from textual import work
from textual.app import App
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.strip import Strip
from textual.widgets import DataTable, Footer, Static

from cgpu_cli.show.plain import Plain
from cgpu_cli.show.table import format_weight
from cgpu_cli.show.trend import ORDERS, Trend, draw_bar, draw_sparks
from cgpu_env import CgpuError
from cgpu_env.errors import printable
from cgpu_env.values import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.app import ComposeResult
    from textual.filter import LineFilter

    from cgpu_cli.show.trend import Row
    from cgpu_node.view.view import GpuTotals, Usage

_ID_WIDTH, _BAR, _SHORT, _HISTORY, _WIDE = 12, 10, 15, 24, 30
_NARROW, _NARROW_NAME = 100, 16  # columns of a narrow terminal; of a name in it
_MOST_PANELS, _LONGEST_NOTE, _PARTS = 3, 400, 3
_SIGNALLED = 128
_HANG_UP_SECONDS = 0.5  # textual reads the end of its input again and again for so long
_BUSY, _FULL = 90, 100  # percent
# column: the order that a click on its head selects
_COLUMNS = {
    "Container": "name",
    "Name": "name",
    "GPU": "gpu",
    "Compute": "compute",
    "Memory": "memory",
    "Weight": "weight",
    "Limit": "compute",
    "Used / cap": "memory",
    "Waits": "waits",
    "History": "compute",
    "Refused": "memory",
    "Procs": "memory",
}
_HELP = """\
c m t w n g   sort by compute, memory, waits, weight, name, GPU
r             the other way round; a click on the head of a column does both
space         pause, go on
up, down      move through the containers
left, right   see columns that have no room
? or Escape   this help, and back
q or Ctrl-C   quit

Compute       percent of the GPU's time in the last second
~, -          an estimate; not known
Memory        percent of its cap that it holds
Weight        ! is high priority; - shares what the others leave
Limit         percent of the GPU's time that it may have beside others
Waits         percent of the time for which it waited for its turn
History       compute of the last looks
Refused       requests for memory that did not fit
"""


class Columns(DataTable[Text]):
    """A table that hides a column if it does not fit whole: half a number is another number."""

    def _column_ends(self) -> list[int]:
        """Return where each column ends, in cells from the left end of the first column."""
        widths = (column.get_render_width(self) for column in self.ordered_columns)
        return [*accumulate(widths, initial=0)]

    def render_line(self, y: int) -> Strip:
        """Return a line of the columns that fit."""
        line, left = super().render_line(y), self.scroll_offset.x
        ends, right = self._column_ends(), left + self.size.width
        first = min((end for end in ends if end >= left), default=left)
        last = max((end for end in ends if end <= right + self.cell_padding), default=right)
        if first >= last:  # not even one has
            return line
        space = Strip.blank(first - left, self.rich_style)
        shown_part = line.crop(first - left, last - left)
        return Strip.join([space, shown_part]).crop_extend(0, right - left, self.rich_style)

    def action_cursor_right(self) -> None:
        """Scroll by a column."""
        x = self.scroll_target_x
        self.scroll_to(x=min((end for end in self._column_ends() if end > x), default=x))

    def action_cursor_left(self) -> None:
        """Scroll back by a column."""
        x = self.scroll_target_x
        self.scroll_to(x=max((end for end in self._column_ends() if end < x), default=0))


class Board(App[None]):
    """Shows what ``look`` returns, every ``seconds``. ``is_ascii``: draws with ASCII only."""

    TITLE = "cgpu top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #gpus { height: auto; max-height: 50%; }
    .gpu { height: auto; padding: 0 1; border: round $primary; }
    .gpu.line { border: none; }
    #help { display: none; height: 1fr; padding: 0 1; }
    .helping #gpus, .helping #containers { display: none; }
    .helping #help { display: block; }
    #state { height: auto; max-height: 3; padding: 0 1; color: $text-muted; }
    #containers { height: 1fr; }
    """
    BINDINGS: ClassVar = [
        Binding("question_mark", "help", "help"),
        Binding("q", "quit", "quit"),
        *(
            Binding(
                key, f"order('{order}')", order, show=order != "name"
            )  # 80 columns hold no more
            for key, order in zip("cmtwng", ORDERS, strict=True)
        ),
        Binding("r", "reverse", "reverse"),
        Binding("space", "pause", "pause"),
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("escape", "help_end", show=False),
    ]

    def __init__(
        self, look: Callable[[], Usage], seconds: float, *, is_ascii: bool = False
    ) -> None:
        super().__init__()
        self._plain = Plain(enabled=is_ascii)
        self._look, self._seconds = look, seconds
        self._trend = Trend()
        self._rows: list[Row] = []
        self._notes: tuple[str, ...] = ()
        self._order, self._reversed, self._paused = "compute", False, False
        self._shown_keys: list[str] = []
        self.looks = 0

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return the filters that each line passes before it is printed."""
        return [*super().get_line_filters(), *[self._plain] * self._plain.enabled]

    def compose(self) -> ComposeResult:
        """Yield the widgets."""
        yield VerticalScroll(id="gpus")
        yield Static(id="state", markup=False)
        yield Columns(id="containers", cursor_type="row", zebra_stripes=True)
        yield Static(_HELP, id="help", markup=False)
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Begin to refresh. However the program ends, the terminal is restored."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            end = partial(self.exit, return_code=_SIGNALLED + number)
            asyncio.get_running_loop().add_signal_handler(number, end)
        table = self._find_table()
        for column in _COLUMNS:
            table.add_column(column, key=column)
        table.focus()
        self.look_again()
        self.set_interval(self._seconds, self.look_again)
        if not self.is_headless:
            self.set_interval(_HANG_UP_SECONDS, self._end_without_terminal)

    def _end_without_terminal(self) -> None:
        """End once the terminal is gone.

        If the terminal does not control the session, the kernel sends no SIGHUP, and Textual would
        keep reading.
        """
        terminal = select.poll()
        terminal.register(sys.stdin.fileno(), 0)  # hang-ups are reported unasked
        if terminal.poll(0):
            self.exit(return_code=_SIGNALLED + signal.SIGHUP)

    def look_again(self) -> None:
        """Refresh, unless the screen is paused or the last refresh still runs."""
        if not self._paused and not any(self.workers):
            self.fetch_usage()

    @work(thread=True)
    def fetch_usage(self) -> None:
        """Read the usage in a thread: a node that does not answer must not block the keys."""
        try:
            usage = self._look()
        except CgpuError as error:
            self.call_from_thread(
                self._show_if_mounted, partial(self._show_state, printable(str(error)))
            )
        else:
            self.call_from_thread(self._show_if_mounted, partial(self._show_usage, usage))

    def _show_if_mounted(self, show: Callable[[], None]) -> None:
        """Call ``show``, unless the screen or a part of it has ended meanwhile."""
        if len(self.query("#gpus, #state, #containers")) == _PARTS:
            show()

    def action_order(self, order: str) -> None:
        """Sort by another column."""
        self._order, self._reversed = order, False
        self._fill_table()

    def action_reverse(self) -> None:
        """Reverse the order."""
        self._reversed = not self._reversed
        self._fill_table()

    def action_help(self) -> None:
        """Show or hide the help on keys and columns."""
        self.screen.toggle_class("helping")

    def action_help_end(self) -> None:
        """Hide the help."""
        self.screen.remove_class("helping")

    def action_pause(self) -> None:
        """Pause, or continue."""
        self._paused = not self._paused
        self._show_state("")

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        """Sort by the column whose head was clicked. A second click reverses the order."""
        order = _COLUMNS[str(event.column_key.value)]
        if order == self._order:
            self.action_reverse()
        else:
            self.action_order(order)

    def _find_table(self) -> DataTable[Text]:
        return self.query_one("#containers", DataTable)

    def _show_state(self, trouble: str) -> None:
        order = f"by {self._order}{', reversed' if self._reversed else ''}"
        notes = (printable(note, _LONGEST_NOTE) for note in self._notes)
        parts = (order, "paused" if self._paused else "", trouble, *notes)
        self.query_one("#state", Static).update("  |  ".join(filter(None, parts)))

    def _show_usage(self, usage: Usage) -> None:
        self.looks += 1
        self._rows, self._notes = self._trend.make_rows(usage), usage.notes
        self._show_gpus(usage)
        self._fill_table()

    def _show_gpus(self, usage: Usage) -> None:
        box = self.query_one("#gpus")
        panels = list(box.query(Static))
        for gpu in usage.gpus[len(panels) :]:
            panel = Static(classes="gpu", markup=False)
            panel.border_title = escape(f"GPU {gpu.index}  {gpu.name}")
            panels.append(panel)
            box.mount(panel)
        has_panels = len(usage.gpus) <= _MOST_PANELS
        width = _SHORT if self.size.width < _NARROW else _WIDE
        for panel, gpu in zip(panels, usage.gpus, strict=False):
            panel.set_class(not has_panels, "line")
            panel.update(_format_panel(gpu, width) if has_panels else _format_gpu_line(gpu))

    def _fill_table(self) -> None:
        table = self._find_table()
        cursor = table.cursor_row
        key = self._shown_keys[cursor] if 0 <= cursor < len(self._shown_keys) else None
        table.clear()
        rows = sorted(self._rows, key=ORDERS[self._order], reverse=self._reversed)
        name_width = _NARROW_NAME if self.size.width < _NARROW else _WIDE
        for row in rows:
            table.add_row(*_format_cells(row, name_width), key=row.key)
        self._shown_keys = [row.key for row in rows]
        if key in self._shown_keys:
            table.move_cursor(row=self._shown_keys.index(key))
        self._show_state("")


def _format_panel(gpu: GpuTotals, width: int) -> Text:
    """Return the three lines of a GPU. With bars of `_SHORT`, none is longer than 72 columns."""
    share, is_whole = _choose_compute(gpu)
    text = Text(f"Policy  {gpu.policy} {gpu.policy_name}, prio_ratio {gpu.prio_ratio}")
    text.append(f"   {gpu.containers} of {gpu.max_inst} containers\n")
    text.append("Compute ").append(_style_bar(share or 0, width))
    text.append(
        " not measured\n" if share is None else f" {_format_percent(share, is_estimate=is_whole)}\n"
    )
    text.append("Memory  ").append(_style_bar(_to_percent(gpu.used_bytes, gpu.total_bytes), width))
    text.append(f" {gpu.used_bytes // MIB}MiB held, {gpu.promised_bytes // MIB}MiB promised")
    return text.append(f" of {gpu.total_bytes // MIB}MiB")


def _format_gpu_line(gpu: GpuTotals) -> Text:
    """Return one line about a GPU, of at most 80 columns."""
    (share, is_whole), memory = _choose_compute(gpu), _to_percent(gpu.used_bytes, gpu.total_bytes)
    text = Text(f"GPU {gpu.index:<2} {gpu.name[:_NARROW_NAME]:<{_NARROW_NAME}}  ")
    text.append(_style_bar(share or 0, _BAR)).append(_format_percent(share, is_estimate=is_whole))
    text.append("  memory ").append(_style_bar(memory, _BAR)).append(_format_percent(memory))
    return text.append(f"  {gpu.containers} of {gpu.max_inst}")


def _format_cells(row: Row, name_width: int) -> tuple[Text, ...]:
    compute, memory = row.compute, _to_percent(row.used, row.cap)
    return (
        Text(row.id[:_ID_WIDTH]),
        Text(printable(row.name)[:name_width]),
        Text(str(row.gpu), justify="right"),
        _style_bar(compute or 0, _BAR).append(
            _format_percent(compute, is_estimate=row.is_estimate)
        ),
        _style_bar(memory, _BAR).append(_format_percent(memory)),
        Text(format_weight(row.weight, is_high=row.high_priority), justify="right"),
        Text(_format_percent(row.limit), justify="right"),
        Text(f"{row.used // MIB} / {row.cap // MIB} MiB", justify="right"),
        Text(_format_percent(row.throttled), justify="right"),
        Text(draw_sparks(row.history, _HISTORY), "cyan"),
        Text(_format_count(row.refused), "red" if row.refused else "", justify="right"),
        Text(_format_count(row.processes), justify="right"),
    )


def _style_bar(percent: float, width: int) -> Text:
    style = "red" if percent >= _FULL else "yellow" if percent >= _BUSY else "green"
    return Text.assemble((draw_bar(percent, width), f"{style} on grey23"))


def _format_count(number: int | None) -> str:
    return "-" if number is None else str(number)


def _choose_compute(gpu: GpuTotals) -> tuple[float | None, bool]:
    """Return the containers' use and False; if it is not measured, the GPU's use and True."""
    measured = gpu.measured_percent
    return (gpu.utilisation_percent, True) if measured is None else (measured, False)


def _format_percent(percent: float | None, *, is_estimate: bool = False) -> str:
    """Format a percentage in six columns; ``~`` marks an estimate."""
    if percent is None:
        return "     -"
    return f"{f'~{percent:.0f}':>5}%" if is_estimate else f"{percent:5.1f}%"


def _to_percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0
