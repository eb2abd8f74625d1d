"""Whatever dies or stops, nobody waits more than 250 ms longer, and the shares return (REL-2).

Each fault is done 100 times to one of two programs that launch short kernels without a pause, and
the longest time without a launch of the other is measured, by that program itself.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from lab.driver.stopping import stop, stopped, traced
from lab.shares.compute import measure_stopped, wait_for
from lab.shares.compute_player import (
    TIMES,
    gap_after,
    gate_looks,
    judge,
    usual_gap_ms,
    wait_until,
)
from lab.worlds.compute import PAUSELESS, shares_return

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from lab.worlds.compute import Players

    Stop = Callable[[Path, int], AbstractContextManager[None]]

pytestmark = [pytest.mark.integration, pytest.mark.alone(2), pytest.mark.timeout(600)]


@pytest.mark.parametrize("holds", [True, False], ids=["holder", "waiting"])
def test_a_killed_process_costs_nobody_more_than_250_ms(pair: Players, holds: bool) -> None:  # noqa: FBT001
    steady, victim = pair.by_tag["steady"], pair.by_tag["victim"]
    usual = usual_gap_ms(steady)
    gaps, pid = [], None
    for _ in range(TIMES):
        pid = pair.pid("victim", besides=pid)
        wait_until(steady.holds, "the other one holds the gate")
        wait_until(lambda: victim.holds() is holds, "the gate is as wanted")
        gaps.append(gap_after([steady], lambda pid=pid: os.kill(pid, signal.SIGKILL)))
    judge(f"{'holder' if holds else 'waiting process'} killed", usual, gaps)
    assert shares_return(pair)


def test_a_stopped_holder_costs_nobody_more_than_250_ms(pair: Players) -> None:
    steady, victim = pair.by_tag["steady"], pair.by_tag["victim"]
    usual = usual_gap_ms(steady)
    pid = pair.pid("victim")
    gaps = []
    for _ in range(TIMES):
        wait_until(lambda: not victim.holds(), "a turn begins")
        wait_until(victim.holds, "it holds the gate")
        gaps.append(gap_after([steady], lambda: stop(pair.world.driver, pid)))
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.05)
    judge("holder stopped", usual, gaps)
    assert shares_return(pair)


# How it is stopped; the flags of both; what the steady one is due of both, within so many points.
# The soft policy lets each be ahead for a while; of a small weight, the stopped one may have paid
# for up to a second in which it did not run.
EQUAL = ("--weight 1", "--weight 1")
STOPS = {
    "signal": (stopped, EQUAL, 50, 10),
    "debugger": (traced, EQUAL, 50, 10),
    "heavy": (stopped, ("--weight 1", "--weight 3"), 25, 10),
    "light": (stopped, ("--weight 3", "--weight 1"), 75, 25),
    "soft": (stopped, ("--policy 4", "--policy 4"), 50, 20),
}


@pytest.mark.parametrize(
    ("how", "pair", "due", "points"), STOPS.values(), ids=STOPS, indirect=["pair"]
)
def test_who_was_stopped_has_saved_nothing_up(
    how: Stop, pair: Players, due: float, points: float
) -> None:
    """It starts level. The other has the GPU meanwhile, and its part soon afterwards."""
    driver, pid = pair.world.driver, pair.pid("victim")
    time.sleep(1)  # what each had queued while it was alone has ended
    for seconds in (0.5, 2.0):
        looks: list[bool] = []
        had, afterwards = measure_stopped(
            driver,
            ["steady", "victim"],
            how(driver, pid),
            pair.server(),
            lambda: looks.extend(gate_looks(pair.by_tag["steady"].watched, seconds)),  # noqa: B023
        )
        assert had > 90, seconds
        assert sum(looks) > 0.85 * len(looks), (seconds, sum(looks), len(looks))
        assert abs(afterwards.parts()["steady"] - due) <= points, (seconds, afterwards)


def test_a_session_that_goes_while_it_holds_costs_nobody_more_than_250_ms(pair: Players) -> None:
    steady = pair.by_tag["steady"]
    usual = usual_gap_ms(steady)
    pair.end("victim")
    gaps = []
    for _ in range(TIMES):
        victim = pair.spin("victim", "--weight 1", PAUSELESS)
        wait_for(pair.world.driver, ["victim"])
        wait_until(lambda: not victim.holds(), "a turn begins")  # noqa: B023
        wait_until(victim.holds, "it holds the gate")
        gaps.append(gap_after([steady], lambda: pair.end("victim")))
        wait_until(lambda: victim.folder.name not in pair.world.sessions(), "it is gone")  # noqa: B023
    judge("session gone", usual, gaps)
    pair.spin("victim", "--weight 1", PAUSELESS)
    assert shares_return(pair)
