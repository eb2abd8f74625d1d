"""Facts about time: what a marker costs, when it is seen, how the GPU goes from one to the next."""

from __future__ import annotations

import itertools
import statistics
import subprocess
from typing import Any

from gpu.check import Finding, NotRunError, check, heard, meets
from gpu.interface.program import compiled

Gap = tuple[int, int]


def _timed(mode: str) -> dict[str, Any]:
    done = subprocess.run(
        [compiled("timing"), mode], capture_output=True, text=True, check=False, timeout=120
    )
    for line in done.stdout.splitlines():
        found = heard(line)
        if found is not None:
            return found
    raise RuntimeError(f"timing {mode} ended with {done.returncode}: {done.stderr.strip()[-300:]}")


@check("facts")
def a_marker_costs_no_more_than_a_launch() -> Finding:
    """A write-value costs the CPU at most 2 us and no more than a launch.

    An event's record likewise; asking for one costs at most 1 us. Decides what a batch ends with.
    """
    costs = _timed("costs")
    launch, marker = costs["launch_ns"], costs["write_value_ns"]
    bars = marker <= 2000, marker <= launch, costs["event_query_ns"] <= 1000
    return Finding(meets(*bars), costs)


@check("facts")
def a_marker_is_seen_at_once_by_every_process() -> Finding:
    """A write-value into an idle stream is seen within 30 us of the call.

    By another process that shares the memory at most 5 us later, and two of them around a kernel
    tell how long it took within 30 us. Decides whether markers can be the clock.
    """
    seen = _timed("marks")
    bars = (
        seen["seen_after_ns"] <= 30_000,
        abs(seen["by_the_other_ns"]) <= 5000,
        abs(seen["around_a_kernel_ns"]) <= 30_000,
    )
    return Finding(meets(*bars), seen)


@check("facts")
def a_marker_alone_is_seen_as_late_as_one_behind_a_kernel() -> Finding:
    """A kernel launched on an idle GPU and its marker are seen as late as a marker alone.

    Less the kernel's own time, within 50 us. Decides whether a marker alone measures the lag.
    """
    seen = _timed("marks")
    apart = seen["behind_a_kernel_ns"] - seen["seen_after_ns"]
    return Finding(meets(abs(apart) <= 50_000), {**seen, "apart_ns": apart})


@check("facts", simulated=False)
def letting_the_next_process_in_early_saves_idle_time() -> Finding:
    """Opening the next gate 100 us before the holder's end leaves the GPU idle for less long.

    By 5 us at least, from the last kernel of one process to the first of the other, by the GPU's
    clock; less than nothing where the driver goes over before the end. Decides whether hand-over
    is early.
    """
    idle = _timed("handover")
    saved = idle["idle_ns"] - idle["idle_early_ns"]
    return Finding(saved >= 5000, {**idle, "saved_ns": saved})


def turns(gaps: list[list[Gap]]) -> dict[str, float]:
    """Median length of a process's own turn and of the switch after it, in microseconds.

    ``gaps`` are, for each of two processes, the times at which it did not run (by the GPU's clock).

    Raises:
        NotRunError: the two never took turns.
    """
    own = [after[0] - before[1] for side in gaps for before, after in itertools.pairwise(side)]
    switches = [
        resumed - lost
        for side, other in (gaps, gaps[::-1])
        for lost, back in side
        for _, resumed in other
        if lost < resumed < back
    ]
    if not own or not switches:
        raise NotRunError("the two processes never took turns")
    return {
        "turn_us": statistics.median(own) / 1000,
        "switch_us": statistics.median(switches) / 1000,
        "turns": len(own),
    }


@check("facts", simulated=False)
def two_processes_take_turns_of_milliseconds() -> Finding:
    """Two processes with endless kernels get turns of 0.5 to 5 ms; a switch takes at most 0.2 ms.

    The model assumes 1 ms and 50 us.
    """
    seen = turns(_timed("slices")["gaps"])
    holds = 500 <= seen["turn_us"] <= 5000 and seen["switch_us"] <= 200
    return Finding(holds, seen)
