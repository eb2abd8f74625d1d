"""Shares of GPU time: figures, bars, table and pictures. No GPU has a part in them."""

from __future__ import annotations

import importlib.util
from typing import Any, NamedTuple

from bench import live, modelled, pictures

GRID, OVER_TIME, LATENCY = "shares-grid.png", "shares-over-time.png", "shares-latency.png"
LIVE_BAR, ARBITER_BAR = 3.0, 3.0


def measure() -> dict[str, Any]:
    """The model's figures, and those of real programs on the simulated GPU."""
    return {"model": modelled.measure(), "live": live.measure()}


def steady(figures: dict[str, Any]) -> list[tuple[str, float, float]]:
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

    @property
    def met(self) -> bool:
        """Whether the bar is met."""
        size = abs(self.figure)
        return size >= self.bar if self.least else size <= self.bar


# Groups of the model's scenarios: what they are, and their unit. Others are shown by their names.
GROUPS = {
    "share-75-25": ("75:25 over 30 s, kernels of 5 us to 200 ms each", "points"),
    "share-90-10": ("90:10 over 10 s, likewise", "points"),
    "share-50-50": ("50:50 over 10 s, likewise", "points"),
    "share-five": ("40/30/15/10/5, kernels of 5 us to 50 ms", "points"),
    "share-late": ("75:25, wake-ups of 60 us, polls up to 220 us late", "points"),
    "share-flight": ("50:50, kernels of 450 to 550 us beside 50 us and 5 ms, likewise", "points"),
    "fixed-alone": ("fixed 30 %, alone", "points"),
    "fixed-three": ("fixed 30 %, three together, mixed lengths", "points"),
    "fair-share-alone": ("policy 0, one container of max_inst 4: 25 %", "points"),
    "high-latency": ("short high-priority kernels beside a backlog, added at p99", "ms"),
    "high-ratio": ("high priority, always busy: prio_ratio 80 %", "points"),
    "live-change": ("policy, weight or priority changes: share from 100 ms later on", "points"),
    "fault": ("longer wait when a holder is stopped, killed, deleted, 100 times each", "ms"),
    "meet": ("containers on several GPUs whose processes meet: rate, longest step, charge", ""),
    "pair-fault": ("one of two such is stopped, killed, deleted: longest step of the other", "ms"),
    "crowd": ("containers that come, go, idle and burst by chance", ""),
}


def lines(figures: dict[str, Any]) -> list[Line]:
    """All figures that have a bar."""
    found = []
    for case in figures["model"]["cases"]:
        title, unit = GROUPS.get(case["group"], (case["group"], ""))
        worst, busy = case["worst"], case["busy"]
        if not unit:  # its figures are of several kinds
            missed = case["count"] - case["met"]
            found.append(Line(f"model: {title}; missed bars of {case['count']}", missed, 0, ""))
            continue
        name = f"model: {title}; worst of {case['count']}"
        found.append(Line(name, worst["value"], worst["bar"], unit))
        if busy:
            name = "model: the same, GPU busy while somebody has work"
            found.append(Line(name, busy["percent"], busy["bar"], "%", least=True))
    for name, share, target in steady(figures):
        found.append(Line(f"simulated GPU: {name}", share - target, LIVE_BAR, "points"))
    grid = figures["live"]["grid"]
    count, seconds = len(grid["cells"]), grid["seconds"]
    case = f"simulated GPU: 75:25 over {seconds:g} s, kernels of 50 us to 50 ms; worst of {count}"
    found.append(Line(case, grid["worst_points"], LIVE_BAR, "points"))
    taken = figures["live"]["arbiter"]["thread_percent"]
    found.append(Line("arbitration of one contended GPU, of a core", taken, ARBITER_BAR, "%"))
    return found


def table(rows: list[Line]) -> str:
    """Markdown table of ``rows``."""
    words = ["| case | figure | bar | met |", "|---|---|---|---|"]
    for row in rows:
        bar = f"{'>=' if row.least else '<='} {row.bar:g} {row.unit}"
        met = "yes" if row.met else "**no**"
        figure = f"{row.figure:.2f} {row.unit}" if row.unit else f"{row.figure:g}"
        words.append(f"| {row.case} | {figure} | {bar.strip()} | {met} |")
    return "\n".join(words)


def draw(figures: dict[str, Any]) -> list[str]:
    """Draw the pictures and return their names; none if Matplotlib is missing."""
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
