"""Shares of GPU time between programs that keep it busy with kernels of every length."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from gpu.cage import Ask
from gpu.check import HOST, Finding, check
from gpu.shares.spinners import LEAD_NS, STEADY, Group, How, spinning
from gpu.world import World
from lab.shares.lengths import LENGTHS_US

FIXED, SOFT, NATIVE, WEIGHTED_FAIR = 3, 4, 5, 6
# SCH-11: a point over 1 s, whichever, for kernels up to 10 ms; over 20 s up to 200 ms.
SHORT_US, POINT = 10_000, 0.01
MIXES_US = ((50, 5_000, 50_000), (50, 5_000, 200_000))
BRIEF_US = (50, 500, 5_000)
# Rehearsed on the simulated GPU: real time on a small machine, whose processes the CPU delays.
REHEARSED_US, REHEARSED_POINTS = (500, 2_000, 5_000), 0.03
TOGETHER_US, TOGETHER_POINTS, TOGETHER_REHEARSED = (50, 5_000), 0.05, 0.15


class Windows(NamedTuple):
    """So many one after the other, in each of which shares are to hold."""

    seconds: float
    count: int


SHORT, LONG, REHEARSED = Windows(1.0, 3), Windows(20.0, 1), Windows(1.5, 2)


def _plan(world: World) -> tuple[list[tuple[int, int]], float]:
    """Pairs of lengths, and by how much a share may be off."""
    if world.simulated:
        return [(REHEARSED_US[0], REHEARSED_US[-1])], REHEARSED_POINTS
    lengths = BRIEF_US if world.brief else LENGTHS_US
    return [(a, b) for a in lengths for b in lengths], POINT


def windows_for(world: World, lengths_us: Sequence[int]) -> Windows:
    """What shares are taken over."""
    if world.simulated:
        return REHEARSED
    return SHORT if max(lengths_us) <= SHORT_US else LONG


def parts_had(world: World, group: Group, lengths_us: Sequence[int]) -> list[list[float]]:
    """For each window, the part of its time that each program had."""
    windows = windows_for(world, lengths_us)
    had = group.run(lengths_us, windows.seconds * windows.count, windows.count)
    return [list(parts) for parts in zip(*had, strict=True)]


def grid(world: World, weights: tuple[int, int]) -> Finding:
    """Shares of a pair by weight, for each pair of kernel lengths."""
    lengths, bar = _plan(world)
    target = weights[0] / sum(weights)
    cells: list[dict[str, Any]] = []
    with spinning(world, [Ask(weight, WEIGHTED_FAIR) for weight in weights]) as group:
        for pair in lengths:
            had = parts_had(world, group, pair)
            shares = [one / (one + other) for one, other in had]
            worst = max(shares, key=lambda share: abs(share - target))
            cells.append(
                {
                    "lengths_us": list(pair),
                    "shares": [round(share, 4) for share in shares],
                    "busy": round(min(map(sum, had)), 4),
                    "off_points": round(100 * (worst - target), 2),
                }
            )
    worst = max(abs(cell["off_points"]) for cell in cells)
    measured = {"worst_points": worst, "target": target, "cells": cells}
    return Finding(worst <= 100 * bar, measured)


@check("shares", HOST)
def shares_of_75_to_25_hold_for_kernels_of_any_length(world: World) -> Finding:
    """Two programs of weights 3 and 1 get 75 and 25 % of what both get, within 1 point.

    For kernels of 5 us to 200 ms each: in the worst of three windows of 1 s, or over 20 s where one
    has kernels above 10 ms.
    """
    return grid(world, (3, 1))


@check("shares", HOST)
def shares_of_90_to_10_hold_for_kernels_of_any_length(world: World) -> Finding:
    """Likewise 90 and 10 %, for weights 9 and 1."""
    return grid(world, (9, 1))


@check("shares", HOST)
def three_caps_of_30_percent_hold(world: World) -> Finding:
    """Under the fixed policy three programs with 6 of 20 get 30 % of the GPU's time each.

    Within 1 point over 20 s, with kernels of 50 us, 5 ms and 50 ms beside each other; likewise with
    200 ms in place of 50.
    """
    mixes = (REHEARSED_US,) if world.simulated else MIXES_US[: 1 if world.brief else None]
    bar = REHEARSED_POINTS if world.simulated else POINT
    ask = Ask(weight=6, policy=FIXED, part=world.quarter)
    with spinning(world, [ask] * 3) as group:
        had = [parts_had(world, group, lengths) for lengths in mixes]
    worst = max(abs(share - 0.3) for windows in had for shares in windows for share in shares)
    mixed = [
        {"lengths_us": lengths, "shares": [[round(s, 4) for s in shares] for shares in windows]}
        for lengths, windows in zip(mixes, had, strict=True)
    ]
    return Finding(worst <= bar, {"worst_points": round(100 * worst, 2), "mixes": mixed})


@check("shares", HOST)
def two_programs_without_turns_share_a_gpu_equally(world: World) -> Finding:
    """Under policies 4 and 5 kernels of 50 us beside 5 ms have half of the GPU, within 5 points.

    As a GPU does that interrupts a kernel at the end of a time slice. On one that does not, the
    long ones have most of it; then the soft policy cannot share, and what is shown is wrong.
    """
    bar = TOGETHER_REHEARSED if world.simulated else TOGETHER_POINTS
    shares = {}
    for name, policy in (("native", NATIVE), ("soft", SOFT)):
        with spinning(world, [Ask(policy=policy)] * 2) as group:
            had = parts_had(world, group, TOGETHER_US)
        shares[name] = [round(short / (short + long), 4) for short, long in had]
    worst = max(abs(share - 0.5) for windows in shares.values() for share in windows)
    return Finding(worst <= bar, {"worst_points": round(100 * worst, 2), "shares": shares})


def latencies(
    group: Group, lengths_us: tuple[int, int], seconds: float, how: How = STEADY
) -> list[float]:
    """Milliseconds until each launch of the first was seen ended; the other is always busy."""
    for length in lengths_us:
        group.prepare(length)
    start = time.monotonic_ns() + LEAD_NS
    end = start + int(seconds * 1e9)
    asking, busy = group.members
    busy.tell("run", lengths_us[1], start, end, 1, *how)
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
    short, long, seconds = 100, 5_000, 1.0 if world.simulated else 10.0
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
