"""The rows of ``cgpu top``: the containers at each refresh, how they change, and their order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from cgpu_cli.show.table import format_others_title, format_title
from cgpu_node.view.view import Compute, GpuTotals, GpuUse, Others, Usage, Use

REMEMBERED = 120
_NS = 1_000_000_000
_PERCENT = 100
_BLOCKS = "▁▂▃▄▅▆▇█"
_EIGHTHS = " ▏▎▍▌▋▊▉"


class Row(NamedTuple):
    """A container on one GPU.

    Attributes:
        key: what distinguishes the row from all other rows.
        id: the container's id; empty for the row of all containers that are not shown one by one.
        name: what people call it.
        gpu: the GPU's index on the node.
        weight: its compute weight.
        high_priority: whether it has high priority.
        compute: percent of the GPU's time in the last second; None if it is not known.
        is_estimate: whether ``compute`` is an estimate.
        limit: percent that it may have; None for a container that has just ended.
        throttled: percent of the time since the last refresh in which it waited for its turn.
        used: bytes that it holds.
        cap: bytes that it may hold.
        refused: how many requests for memory did not fit; None if that is not shown.
        processes: how many processes hold memory; None if that is not shown.
        history: earlier values of ``compute``, the latest last.
    """

    key: str
    id: str
    name: str
    gpu: int
    weight: int
    high_priority: bool
    compute: float | None
    is_estimate: bool
    limit: float | None
    throttled: float | None
    used: int
    cap: int
    refused: int | None
    processes: int | None
    history: tuple[float | None, ...]


# The order of rows by each column: the largest first, except for names and GPU numbers.
ORDERS: dict[str, Callable[[Row], tuple[float | str, ...]]] = {
    "compute": lambda row: (-(row.compute or 0), row.name, row.key),
    "memory": lambda row: (-row.used, row.name, row.key),
    "waits": lambda row: (-(row.throttled or 0), row.name, row.key),
    "weight": lambda row: (-row.weight, row.name, row.key),
    "name": lambda row: (row.name, row.key),
    "gpu": lambda row: (row.gpu, -(row.compute or 0), row.key),
}


class _Past(NamedTuple):
    seen: float
    throttled_ns: int


class Trend:
    """Follows the containers from refresh to refresh."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._past: dict[str, _Past] = {}
        self._histories: dict[str, deque[float | None]] = {}

    def make_rows(self, usage: Usage) -> list[Row]:
        """Return the rows of this refresh. Containers that are not in it are forgotten."""
        now = self._clock()
        found = [self._make_row(use, gpu, now) for use in usage.uses for gpu in use.gpus]
        found += [
            self._make_others_row(gpu, gpu.others) for gpu in usage.gpus if gpu.others is not None
        ]
        keys = {row.key for row in found}
        for table in (self._past, self._histories):
            for key in table.keys() - keys:
                del table[key]
        return found

    def _make_others_row(self, gpu: GpuTotals, its: Others) -> Row:
        """Return the row of all containers on a GPU that are not shown one by one."""
        key = f" {gpu.uuid}"
        past = self._remember_compute(key, its.measured_percent)
        return Row(
            key,
            "",
            format_others_title(its),
            gpu.index,
            its.weight,
            high_priority=False,
            compute=its.measured_percent,
            is_estimate=False,
            limit=None,
            throttled=None,
            used=its.used_bytes,
            cap=its.cap_bytes,
            refused=None,
            processes=None,
            history=past,
        )

    def _remember_compute(self, key: str, compute: float | None) -> tuple[float | None, ...]:
        """Add a value to a row's history, and return the history, the latest value last."""
        history = self._histories.setdefault(key, deque(maxlen=REMEMBERED))
        history.append(compute)
        return tuple(history)

    def _make_row(self, use: Use, gpu: GpuUse, now: float) -> Row:
        key, its = f"{use.id} {gpu.uuid}", gpu.compute
        measured = its.measured_percent if its else None
        estimate = its.estimated_percent if its and measured is None else None
        history = self._remember_compute(key, measured if estimate is None else estimate)
        return Row(
            key,
            use.id,
            format_title(use),
            gpu.index,
            use.weight,
            use.high_priority,
            history[-1],
            estimate is not None,
            its.limit_percent if its else None,
            self._measure_throttled(key, its, now),
            gpu.used_bytes,
            gpu.cap_bytes,
            gpu.refused,
            len(gpu.processes),
            history,
        )

    def _measure_throttled(self, key: str, its: Compute | None, now: float) -> float | None:
        if its is None:
            return None
        before = self._past.get(key)
        self._past[key] = _Past(now, its.throttled_ns)
        if before is None or now <= before.seen or its.throttled_ns < before.throttled_ns:
            return None
        part = (its.throttled_ns - before.throttled_ns) / _NS / (now - before.seen)
        return min(part, 1) * _PERCENT


def draw_bar(percent: float, width: int) -> str:
    """Return a bar of ``width`` cells, exact to an eighth of a cell."""
    eighths = round(max(0, min(percent, _PERCENT)) / _PERCENT * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)


def draw_sparks(history: tuple[float | None, ...], width: int) -> str:
    """Return the latest values as bars of one cell each, with a gap for a value that is unknown."""
    latest = history[-width:]
    return "".join(map(_draw_spark, latest)).rjust(width)


def _draw_spark(percent: float | None) -> str:
    if percent is None:
        return " "
    step = round(max(0, min(percent, _PERCENT)) / _PERCENT * (len(_BLOCKS) - 1))
    return _BLOCKS[step]
