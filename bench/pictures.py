"""The pictures of shares in ``docs/``, drawn from the figures that ``bench.shares`` took."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.shares.lengths import length_text

DOCS = Path(__file__).resolve().parent.parent / "docs"
# From Okabe and Ito's palette, which the colour-blind can distinguish.
BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#767676"
SCALE_POINTS = 1.0
_DPI = 110


def _figure(panels: int, width: float, height: float) -> tuple[Any, Sequence[Any]]:
    """A figure with ``panels`` side by side, in inches."""
    import matplotlib as mpl  # noqa: PLC0415 - half a second, and only to draw

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    plt.rcParams.update({"font.size": 9, "axes.titlesize": 10, "axes.spines.top": False})
    plt.rcParams.update({"axes.spines.right": False, "figure.facecolor": "white"})
    figure, axes = plt.subplots(1, panels, figsize=(width, height), layout="constrained")
    return figure, [axes] if panels == 1 else list(axes)


def _save(figure: Any, path: Path) -> Path:
    """Save it without date and version, so that the same figures give the same file."""
    figure.savefig(path, dpi=_DPI, metadata={"Software": None})
    return path


def error_grid(grids: Sequence[dict[str, Any]], note: str, path: Path) -> Path:
    """Distance from the intended share, in points, by both programs' kernel lengths.

    ``grids``: ``target`` (percent of the first), ``seconds``, ``lengths_us``, and ``off_points`` by
    the first's and the second's length.
    """
    figure, axes = _figure(len(grids), 9.0, 4.1)
    for axis, grid in zip(axes, grids, strict=True):
        names = [length_text(length) for length in grid["lengths_us"]]
        off = [[abs(value) for value in row] for row in grid["off_points"]]
        image = axis.imshow(off, cmap="Blues", vmin=0, vmax=SCALE_POINTS, origin="lower")
        axis.set_xticks(range(len(names)), names)
        axis.set_yticks(range(len(names)), names)
        other = 100 - grid["target"]
        axis.set_xlabel(f"kernels of the {other} % program")
        axis.set_ylabel(f"kernels of the {grid['target']} % program")
        axis.set_title(f"{grid['target']} : {other} over {grid['seconds']:g} s")
        for row, values in enumerate(off):
            for column, value in enumerate(values):
                colour = "white" if value > SCALE_POINTS * 0.6 else "black"
                axis.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour)
    bar = figure.colorbar(image, ax=axes, shrink=0.85)
    bar.set_label("off the share aimed at, points of GPU time")
    figure.suptitle(note, fontsize=10)
    return _save(figure, path)


def over_time(figures: dict[str, Any], note: str, path: Path) -> Path:
    """Shares of two programs, window by window, through a change of one's weight.

    ``figures``: ``step_s``, ``change_s``, and ``programs`` with ``name``, ``shares`` (of 1) and
    ``targets`` before and after the change.
    """
    figure, (axis,) = _figure(1, 9.0, 3.2)
    step, change = figures["step_s"], figures["change_s"]
    for program, colour in zip(figures["programs"], (BLUE, ORANGE), strict=True):
        shares = [100 * share for share in program["shares"]]
        times = [step * (i + 0.5) for i in range(len(shares))]
        before, after = (100 * target for target in program["targets"])
        axis.plot(times, shares, color=colour, label=program["name"], linewidth=1.4)
        axis.hlines([before, after], [0, change], [change, step * len(shares)], GREY, "dotted")
    axis.axvline(change, color=GREY, linewidth=1)
    axis.text(change, 97, f" {figures['change']}", color=GREY, va="top")
    axis.set(xlim=(0, step * len(figures["programs"][0]["shares"])), ylim=(0, 100))
    axis.set_xlabel("time, s")
    axis.set_ylabel(f"share of GPU time, %, per {step:g} s")
    axis.legend(loc="lower left", ncols=2, frameon=False)
    axis.set_title(note)
    return _save(figure, path)


def latency(cases: Sequence[dict[str, Any]], note: str, path: Path) -> Path:
    """What is added to requests with and without priority, by the others' kernel length.

    ``cases``: ``length_us`` of the others, ``bar_ms``, and ``ordinary`` and ``high``, each with the
    percentiles ``p50`` and ``p99`` in milliseconds.
    """
    figure, (axis,) = _figure(1, 9.0, 3.4)
    kinds = ("ordinary", ORANGE, "without priority"), ("high", BLUE, "high priority")
    for side, (key, colour, name) in enumerate(kinds):
        columns = [i + 0.2 * (side - 0.5) for i in range(len(cases))]
        median, late = ([case[key][part] for case in cases] for part in ("p50", "p99"))
        axis.vlines(columns, median, late, colour, linewidth=2)
        axis.plot(columns, median, "o", color=colour, label=f"{name}: median")
        axis.plot(columns, late, "_", color=colour, ms=14, mew=2.4, label="99th percentile")
    for i, case in enumerate(cases):
        label = "one kernel of the others + 1 ms" if i == 0 else None
        axis.hlines(case["bar_ms"], i - 0.35, i + 0.35, GREY, "dotted", label=label)
    axis.set_xticks(range(len(cases)), [length_text(case["length_us"]) for case in cases])
    axis.set_yscale("log")
    axis.set_ylim(top=1000)  # room for the legend
    axis.yaxis.set_major_formatter("{x:g}")
    axis.set_xlabel("kernels of the other programs, which always have work")
    axis.set_ylabel("added to a request, ms")
    axis.grid(visible=True, axis="y", color="#e0e0e0")
    axis.legend(loc="upper left", frameon=False, ncols=3)
    axis.set_title(note)
    return _save(figure, path)
