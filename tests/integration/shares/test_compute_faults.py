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

from lab.driver.stopping import stop
from lab.shares.compute import measure, wait_for, waited_ns
from lab.shares.compute_player import TIMES, gap_after, judge, usual_gap_ms, wait_until
from lab.worlds.compute import PAUSELESS, shares_return

if TYPE_CHECKING:
    from lab.worlds.compute import Players

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


def test_who_was_stopped_has_saved_nothing_up(pair: Players) -> None:
    """SCH-9: it starts level. The other has the GPU meanwhile, and its half soon afterwards.

    The time in which the other or the server waited for a CPU is nobody's fault.
    """
    pid, others = pair.pid("victim"), (pair.pid("steady"), pair.server())
    time.sleep(1)  # what each had queued while it was alone has ended
    for seconds in (0.3, 1.0, 4.0):
        stop(pair.world.driver, pid)
        time.sleep(0.3)
        waited = -waited_ns(others)
        meanwhile = measure(pair.world.driver, pair.by_tag, seconds)
        waited += waited_ns(others)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.1)
        afterwards = measure(pair.world.driver, pair.by_tag, 1)
        late = waited / seconds / 1e7  # percent of the time
        print(f"{seconds} s: {meanwhile}, without a CPU {late:.2f}")  # noqa: T201
        assert meanwhile.points["steady"] + late > 85, (seconds, meanwhile)
        assert 40 < afterwards.parts()["steady"] < 60, (seconds, afterwards)


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
