"""Shares between programs as people run them: with bursts, many streams, many kernels."""

from __future__ import annotations

import statistics
import time

from gpu.cage import Ask
from gpu.check import HOST, Finding, check
from gpu.shares.spinners import LEAD_NS, STEADY, How, spinning
from gpu.shares.weights import NATIVE, WEIGHTED_FAIR, latencies
from gpu.world import World

KERNEL_US, BURST_US = 100, 2_000
# gap, kernels of the other program, and what of its due the bursting one has at least
BURSTS = ((500, 1_000, 0.9), (2_000, 1_000, 0.9), (500, 5_000, 0.75), (500, 20_000, 0.5))
OTHERS_OF_DUE = 0.95
STREAMS = (1, 64, 512)
KINDS, OF_ALONE, OTHERS_EVERY_NS = 4_000, 0.95, 1_000_000_000
HALF_POINTS = 2.0


def _bursts(world: World, policy: int, seconds: float) -> list[list[float]]:
    """For each cell of BURSTS, the parts of the GPU's time that both programs had."""
    found = []
    with spinning(world, [Ask(policy=policy)] * 2) as group:
        for gap_us, other_us, _ in BURSTS:
            bursts = How(burst=BURST_US // KERNEL_US, gap_us=gap_us)
            had = group.run((KERNEL_US, other_us), seconds, hows=(bursts, STEADY))
            found.append([parts[0] for parts in had])
    return found


@check("shares", HOST)
def a_program_that_runs_bursts_gets_its_part_of_a_divided_gpu(world: World) -> Finding:
    """Bursts of 2 ms get 0.9 of what a GPU divided among those that have work would give them.

    With gaps of 0.5 and 2 ms, beside a program of the same weight that is always busy with kernels
    of 1 ms; 0.75 beside kernels of 5 ms, 0.5 beside 20 ms. The other gets 0.95 of its own part.
    While both have work each has half, so a burst takes twice its length: it has burst / (2 burst +
    gap). Where the driver alone (policy 5) gives less than that, because switches cost time, its
    figure counts.
    """
    native = _bursts(world, NATIVE, 1.0)
    had = _bursts(world, WEIGHTED_FAIR, 1.5 if world.simulated else 3.0)
    holds, cells = True, []
    for (gap_us, other_us, least), alone, parts in zip(BURSTS, native, had, strict=True):
        due = BURST_US / (2 * BURST_US + gap_us)
        first = parts[0] / min(due, alone[0])
        second = parts[1] / min(1 - due, alone[1])
        holds = holds and first >= least and second >= OTHERS_OF_DUE
        cells.append(
            {
                "gap_us": gap_us,
                "other_us": other_us,
                "due": round(due, 4),
                "without turns": [round(each, 4) for each in alone],
                "had": [round(each, 4) for each in parts],
                "of what is due": [round(first, 3), round(second, 3)],
            }
        )
    return Finding(world.simulated or holds, {"bursts": cells})


@check("shares", HOST)
def a_high_priority_program_waits_no_longer_for_many_streams(world: World) -> Finding:
    """The median of what it waits for is at most two kernels and 1 ms, for 1, 64 and 512 streams.

    Beside a program that is always busy with kernels of 3 ms.
    """
    short, long, seconds = KERNEL_US, 3_000, 1.0 if world.simulated else 4.0
    figures: dict[str, float] = {}
    for streams in STREAMS:
        asks = [Ask(policy=WEIGHTED_FAIR, high_priority=True), Ask(policy=WEIGHTED_FAIR)]
        with spinning(world, asks) as group:
            samples = latencies(group, (short, long), seconds, How(streams=streams))
        figures[str(streams)] = round(statistics.median(samples), 3)
    bar = (short + 2 * long) / 1000 + 1
    measured = {"median_ms_by_streams": figures, "bar_ms": bar}
    return Finding(world.simulated or max(figures.values()) <= bar, measured)


@check("shares", HOST)
def a_program_of_thousands_of_kernels_keeps_the_gpu(world: World) -> Finding:
    """4,000 kernels of 100 us in turn have 0.95 of what one has, beside one launch a second."""
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


@check("shares", HOST)
def a_program_of_thousands_of_kernels_has_its_half(world: World) -> Finding:
    """4,000 kernels of 100 us in turn beside kernels of 1 ms: half each, within 2 points."""
    seconds = 1.5 if world.simulated else 4.0
    with spinning(world, [Ask(policy=WEIGHTED_FAIR)] * 2) as group:
        hows = (How(kinds=KINDS), STEADY)
        had = [parts[0] for parts in group.run((KERNEL_US, 1_000), seconds, hows=hows)]
    off = 100 * (had[0] / sum(had) - 0.5)
    measured = {"had": [round(each, 4) for each in had], "off_points": round(off, 2)}
    return Finding(world.simulated or abs(off) <= HALF_POINTS, measured)
