"""Shares of GPU time between programs that keep it busy with kernels of every length."""

from __future__ import annotations

import statistics
import time
from typing import Any

from bench.gpu.cage import Ask
from bench.gpu.check import HOST, Finding, check
from bench.gpu.spinners import LEAD_NS, Group, spinning
from bench.gpu.world import World
from bench.lengths import LENGTHS_US

FIXED, WEIGHTED_FAIR = 3, 6
# SCH-11: a point over 1 s for kernels of 10 ms, over 20 s up to 200 ms. Windows are a little
# longer: what was had of the last kernel is known to one kernel only.
SHORT_US, SHORT_S, LONG_S = 10_000, 3.0, 22.0
POINT = 0.01
# Rehearsed on the simulated GPU: real time on a small machine, whose processes the CPU delays.
REHEARSED_US, REHEARSED_S, REHEARSED_POINTS = (500, 2_000, 5_000), 10.0, 0.03


def _plan(world: World) -> tuple[list[tuple[int, int]], float]:
    """Pairs of lengths, and by how much a share may be off."""
    if world.simulated:
        return [(REHEARSED_US[0], REHEARSED_US[-1])], REHEARSED_POINTS
    return [(a, b) for a in LENGTHS_US for b in LENGTHS_US], POINT


def seconds_for(world: World, *lengths_us: int) -> float:
    """How long shares are taken over."""
    if world.simulated:
        return REHEARSED_S
    return SHORT_S if max(lengths_us) <= SHORT_US else LONG_S


def grid(world: World, weights: tuple[int, int]) -> Finding:
    """Shares of a pair by weight, for each pair of kernel lengths."""
    lengths, bar = _plan(world)
    target = weights[0] / sum(weights)
    cells: list[dict[str, Any]] = []
    with spinning(world, [Ask(weight, WEIGHTED_FAIR) for weight in weights]) as group:
        for pair in lengths:
            (one,), (other,) = group.run(pair, seconds_for(world, *pair))
            share = one / (one + other)
            cells.append(
                {
                    "lengths_us": list(pair),
                    "share": round(share, 4),
                    "busy": round(one + other, 4),
                    "off_points": round(100 * (share - target), 2),
                }
            )
    worst = max(abs(cell["off_points"]) for cell in cells)
    measured = {"worst_points": worst, "target": target, "cells": cells}
    return Finding(worst <= 100 * bar, measured)


@check("shares", HOST)
def shares_of_75_to_25_hold_for_kernels_of_any_length(world: World) -> Finding:
    """Two programs of weights 3 and 1 get 75 and 25 % of what both get, within 1 point.

    For kernels of 5 us to 200 ms each, over 3 s, or 22 s where one has kernels above 10 ms.
    """
    return grid(world, (3, 1))


@check("shares", HOST)
def shares_of_90_to_10_hold_for_kernels_of_any_length(world: World) -> Finding:
    """Likewise 90 and 10 %, for weights 9 and 1."""
    return grid(world, (9, 1))


@check("shares", HOST)
def three_caps_of_30_percent_hold(world: World) -> Finding:
    """Under the fixed policy three programs with 6 of 20 get 30 % of the GPU's time each.

    Within 1 point, with kernels of 50 us, 5 ms and 50 ms beside each other.
    """
    lengths = REHEARSED_US if world.simulated else (50, 5_000, 50_000)
    bar = REHEARSED_POINTS if world.simulated else POINT
    ask = Ask(weight=6, policy=FIXED, part=world.quarter)
    with spinning(world, [ask] * 3) as group:
        shares = [part for (part,) in group.run(lengths, seconds_for(world, *lengths))]
    worst = max(abs(share - 0.3) for share in shares)
    measured = {"lengths_us": lengths, "shares": [round(s, 4) for s in shares]}
    return Finding(worst <= bar, measured)


def latencies(group: Group, lengths_us: tuple[int, int], seconds: float) -> list[float]:
    """Milliseconds until each launch of the first was seen ended; the other is always busy."""
    for length in lengths_us:
        group.prepare(length)
    start = time.monotonic_ns() + LEAD_NS
    end = start + int(seconds * 1e9)
    asking, busy = group.members
    busy.tell("run", lengths_us[1], start, end, 1)
    asking.tell("probe", lengths_us[0], start, end, 23_000_000)
    found = asking.answer()["latencies_ns"]
    busy.answer()
    return [ns / 1e6 for ns in found]


def p99(samples: list[float]) -> float:
    """The 99th percentile."""
    return statistics.quantiles(samples, n=100, method="inclusive")[98]


@check("shares", HOST)
def a_high_priority_program_waits_for_one_kernel_at_most(world: World) -> Finding:
    """Short kernels of a high-priority program end within one kernel of the other plus 1 ms.

    At the 99th percentile, beside a program that is always busy with kernels of 5 ms; shown beside
    what it is without priority.
    """
    short, long, seconds = 100, 5_000, 3.0 if world.simulated else 10.0
    figures: dict[str, Any] = {}
    for name, first in (("ordinary", False), ("high priority", True)):
        asks = [Ask(policy=WEIGHTED_FAIR, high_priority=first), Ask(policy=WEIGHTED_FAIR)]
        with spinning(world, asks) as group:
            samples = latencies(group, (short, long), seconds)
        figures[name] = {
            "median_ms": round(statistics.median(samples), 3),
            "p99_ms": round(p99(samples), 3),
        }
    bar = (short + long) / 1000 + 1
    return Finding(world.simulated or figures["high priority"]["p99_ms"] <= bar, figures)
