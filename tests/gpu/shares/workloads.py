"""Shares between programs as people run them: with bursts, many streams, many kernels."""

from __future__ import annotations

import statistics
import time
from typing import Any

from gpu.cage import Ask
from gpu.check import HOST, Finding, check
from gpu.shares.spinners import LEAD_NS, How, spinning
from gpu.shares.weights import WEIGHTED_FAIR, latencies
from gpu.world import World

KERNEL_US, OTHER_US = 100, 1_000
BURST_US, GAPS_US = 2_000, (500, 2_000)
OF_DUE, OTHERS_OF_DUE = 0.9, 0.95
STREAMS = 64
KINDS, OF_ALONE, OTHERS_EVERY_NS = 2_000, 0.95, 1_000_000_000


@check("shares", HOST)
def a_program_that_runs_bursts_gets_its_part_of_a_divided_gpu(world: World) -> Finding:
    """Bursts of 2 ms get 0.9 of what a GPU divided among those that have work would give them.

    With gaps of 0.5 and 2 ms, beside a program of the same weight that is always busy with kernels
    of 1 ms, which gets 0.95 of its own part. While both have work each has half, so a burst takes
    twice its length: it has burst / (2 burst + gap).
    """
    seconds = 1.5 if world.simulated else 4.0
    cells: list[dict[str, Any]] = []
    with spinning(world, [Ask(policy=WEIGHTED_FAIR)] * 2) as group:
        for gap_us in GAPS_US:
            due = BURST_US / (2 * BURST_US + gap_us)
            bursts = How(burst=BURST_US // KERNEL_US, gap_us=gap_us)
            had = group.run((KERNEL_US, OTHER_US), seconds, hows=(bursts, How()))
            first, second = (parts[0] for parts in had)
            cells.append(
                {
                    "gap_us": gap_us,
                    "due": round(due, 4),
                    "had": [round(first, 4), round(second, 4)],
                    "of_due": [round(first / due, 3), round(second / (1 - due), 3)],
                }
            )
    holds = all(
        cell["of_due"][0] >= OF_DUE and cell["of_due"][1] >= OTHERS_OF_DUE for cell in cells
    )
    return Finding(world.simulated or holds, {"bursts": cells})


@check("shares", HOST)
def a_high_priority_program_waits_no_longer_for_many_streams(world: World) -> Finding:
    """The median of what it waits for is at most two kernels and 1 ms, for one stream and for 64.

    Beside a program that is always busy with kernels of 3 ms.
    """
    short, long, seconds = KERNEL_US, 3_000, 1.0 if world.simulated else 4.0
    figures: dict[str, float] = {}
    for streams in (1, STREAMS):
        asks = [Ask(policy=WEIGHTED_FAIR, high_priority=True), Ask(policy=WEIGHTED_FAIR)]
        with spinning(world, asks) as group:
            samples = latencies(group, (short, long), seconds, How(streams=streams))
        figures[str(streams)] = round(statistics.median(samples), 3)
    bar = (short + 2 * long) / 1000 + 1
    measured = {"median_ms_by_streams": figures, "bar_ms": bar}
    return Finding(world.simulated or max(figures.values()) <= bar, measured)


@check("shares", HOST)
def a_program_of_thousands_of_kernels_keeps_the_gpu(world: World) -> Finding:
    """2,000 kernels of 100 us in turn have 0.95 of what one has, beside one launch a second."""
    seconds = 1.5 if world.simulated else 4.0
    had: dict[str, float] = {}
    with spinning(world, [Ask(policy=WEIGHTED_FAIR)] * 2) as group:
        many, idle = group.members
        for kinds in (1, KINDS):
            group.prepare(KERNEL_US)
            start = time.monotonic_ns() + LEAD_NS
            end = start + int(seconds * 1e9)
            many.tell("run", KERNEL_US, start, end, 1, *How(kinds=kinds))
            idle.tell("probe", KERNEL_US, start - LEAD_NS, end, OTHERS_EVERY_NS)
            had[str(kinds)] = round(many.answer()["parts_ns"][0] / (end - start), 4)
            idle.answer()
    part = had[str(KINDS)] / had["1"]
    return Finding(
        world.simulated or part >= OF_ALONE, {"had_by_kinds": had, "part": round(part, 3)}
    )
