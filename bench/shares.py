"""Shares of GPU time: figures, bars, table and pictures. No GPU has a part in them."""

from __future__ import annotations

import importlib.util
from typing import Any, NamedTuple

from bench import live, modelled, pictures
from bench.lengths import length_text

GRID, OVER_TIME, LATENCY = "shares-grid.png", "shares-over-time.png", "shares-latency.png"
GRID_BAR, BUSY_BAR, LIVE_BAR, ARBITER_BAR = 0.5, 98.5, 3.0, 3.0


def measure() -> dict[str, Any]:
    """The model's figures, and those of real programs on the simulated GPU."""
    return {"model": modelled.measure(), "live": live.measure()}


def settled(figures: dict[str, Any]) -> list[tuple[str, float, float]]:
    """Of the live pair: name, share of both's time in percent, and target, before and after.

    Without the second around the change.
    """
    runs = figures["live"]
    steps = round(runs["change_s"] / runs["step_s"])
    margin = round(0.5 / runs["step_s"])
    spans = ("before", slice(0, steps - margin)), ("after", slice(steps + margin, None))
    rows = []
    for number, (when, span) in enumerate(spans):
        sums = [sum(program["shares"][span]) for program in runs["programs"]]
        for program, had in zip(runs["programs"], sums, strict=True):
            target = 100 * program["targets"][number]
            rows.append((f"{program['name']}, {when} the change", 100 * had / sum(sums), target))
    return rows


class Line(NamedTuple):
    """One figure against its bar; ``least``: the bar is a lower one."""

    case: str
    figure: float
    bar: float
    unit: str
    least: bool = False
    mean: float | None = None

    @property
    def met(self) -> bool:
        """Whether the bar is met."""
        size = abs(self.figure)
        return size >= self.bar if self.least else size <= self.bar


def lines(figures: dict[str, Any]) -> list[Line]:
    """All figures that have a bar."""
    found = []
    for grid in figures["model"]["grids"]:
        pair = f"{grid['target']}:{100 - grid['target']}"
        case = f"model, {pair} over {grid['seconds']} s, worst of 36 pairs of kernel lengths"
        worst, busy = grid["worst_points"], grid["least_busy_percent"]
        found.append(Line(case, worst, GRID_BAR, "points", mean=grid["mean_points"]))
        found.append(Line(f"model, {pair}, GPU busy", busy, BUSY_BAR, "%", least=True))
    for each in figures["model"]["latency"]:
        length = length_text(each["length_us"])
        case = f"model, added to a high-priority request beside kernels of {length}, p99"
        found.append(Line(case, each["high"]["p99"], each["bar_ms"], "ms"))
    for name, share, target in settled(figures):
        case = f"simulated GPU, real programs, {name}"
        found.append(Line(case, share - target, LIVE_BAR, "points"))
    taken = figures["live"]["arbiter"]["thread_percent"]
    found.append(Line("arbitration of one contended GPU, of a core", taken, ARBITER_BAR, "%"))
    return found


def table(rows: list[Line]) -> str:
    """Markdown table of ``rows``."""
    words = ["| case | figure | mean | bar | met |", "|---|---|---|---|---|"]
    for row in rows:
        bar = f"{'>=' if row.least else '<='} {row.bar:g} {row.unit}"
        mean = "" if row.mean is None else f"{row.mean:.2f}"
        met = "yes" if row.met else "**no**"
        words.append(f"| {row.case} | {row.figure:.2f} {row.unit} | {mean} | {bar} | {met} |")
    return "\n".join(words)


def draw(figures: dict[str, Any]) -> list[str]:
    """Names of the pictures drawn; none where Matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        return []
    model = figures["model"]
    pictures.error_grid(
        model["grids"],
        "Virtual-time model, not a GPU: how far shares are off",
        pictures.DOCS / GRID,
    )
    pictures.over_time(
        figures["live"],
        "Simulated GPU, real programs under cgpu-run",
        pictures.DOCS / OVER_TIME,
    )
    pictures.latency(
        model["latency"],
        "Virtual-time model, not a GPU: requests of 2 ms beside three busy programs",
        pictures.DOCS / LATENCY,
    )
    return [GRID, OVER_TIME, LATENCY]
