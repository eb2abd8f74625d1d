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

from cgpu_node import server
from lab.shares.compute import measure, wait_for
from lab.shares.compute_player import TIMES, gap_after, judge, usual_gap_ms, wait_until
from lab.worlds.compute import Players

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.integration, pytest.mark.alone, pytest.mark.timeout(600)]

TURNS = 0.1  # seconds in which each of two has several
HOW = "us=100 stream=nonblocking"


@pytest.fixture
def players() -> Iterator[Players]:
    made = Players()
    made.spin("steady", "--weight 1", HOW)
    made.spin_again_and_again("victim", "--weight 1", HOW)
    wait_for(made.world.driver, made.by_tag)
    yield made
    made.stop()


def shares_return(players: Players) -> bool:
    parts = players.measure(warm_up=1, seconds=4).parts()
    return all(abs(part - 50) <= 3 for part in parts.values())


def test_a_killed_arbiter_costs_nobody_more_than_250_ms(players: Players) -> None:
    everyone = list(players.by_tag.values())
    usual = max(usual_gap_ms(player) for player in everyone)
    state = players.world.state
    gaps: list[float] = []
    returns: list[float] = []
    for _ in range(TIMES):
        time.sleep(TURNS)
        pid = players.server()
        gaps.append(gap_after(everyone, lambda pid=pid: os.kill(pid, signal.SIGKILL)))
        server.wake(str(state), str(players.world.driver))
        for player in everyone:
            wait_until(player.is_arbitrated, "an arbiter gives a sign")
        time.sleep(TURNS)
        returns.append(max(player.report().gap_ms for player in everyone))
    judge("arbiter killed", usual, gaps)
    judge("arbiter back", usual, returns)
    assert shares_return(players)


def test_without_an_arbiter_each_keeps_to_its_own_share(players: Players) -> None:
    """One to two, by the clock."""
    pid = players.server()
    players.end("victim")
    players.spin("other", "--weight 2", HOW)
    wait_for(players.world.driver, ["other"])
    time.sleep(TURNS)
    os.kill(pid, signal.SIGKILL)
    parts = players.measure(warm_up=1, seconds=5).parts()
    assert abs(parts["other"] - 200 / 3) <= 3


def test_nobody_owes_the_time_in_which_the_arbiter_stood_still(players: Players) -> None:
    """Half a second in which each keeps to its own part, six times: whoever holds then."""
    players.measure(warm_up=1, seconds=1)
    pid = players.server()
    had: dict[str, float] = dict.fromkeys(players.by_tag, 0)
    for _ in range(6):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.5)
        os.kill(pid, signal.SIGCONT)
        for tag, points in measure(players.world.driver, players.by_tag, 0.4).points.items():
            had[tag] = max(had[tag], points)
    assert max(had.values()) < 75


@pytest.mark.parametrize("holds", [True, False], ids=["holder", "waiting"])
def test_a_killed_process_costs_nobody_more_than_250_ms(players: Players, holds: bool) -> None:  # noqa: FBT001
    steady, victim = players.by_tag["steady"], players.by_tag["victim"]
    usual = usual_gap_ms(steady)
    gaps = []
    for _ in range(TIMES):
        pid = players.pid("victim")
        wait_until(steady.holds, "the other one holds the gate")
        wait_until(lambda: victim.holds() is holds, "the gate is as wanted")
        gaps.append(gap_after([steady], lambda pid=pid: os.kill(pid, signal.SIGKILL)))
    judge(f"{'holder' if holds else 'waiting process'} killed", usual, gaps)
    assert shares_return(players)


def test_a_stopped_holder_costs_nobody_more_than_250_ms(players: Players) -> None:
    steady, victim = players.by_tag["steady"], players.by_tag["victim"]
    usual = usual_gap_ms(steady)
    pid = players.pid("victim")
    gaps = []
    for _ in range(TIMES):
        wait_until(lambda: not victim.holds(), "a turn begins")
        wait_until(victim.holds, "it holds the gate")
        gaps.append(gap_after([steady], lambda: os.kill(pid, signal.SIGSTOP)))
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.05)
    judge("holder stopped", usual, gaps)
    assert shares_return(players)


def test_a_session_that_goes_while_it_holds_costs_nobody_more_than_250_ms(players: Players) -> None:
    steady = players.by_tag["steady"]
    usual = usual_gap_ms(steady)
    players.end("victim")
    gaps = []
    for _ in range(TIMES):
        victim = players.spin("victim", "--weight 1", HOW)
        wait_for(players.world.driver, ["victim"])
        wait_until(lambda: not victim.holds(), "a turn begins")  # noqa: B023
        wait_until(victim.holds, "it holds the gate")
        gaps.append(gap_after([steady], lambda: players.end("victim")))
        wait_until(lambda: victim.folder.name not in players.world.sessions(), "it is gone")  # noqa: B023
    judge("session gone", usual, gaps)
    players.spin("victim", "--weight 1", HOW)
    assert shares_return(players)
