"""An arbiter that dies or stops keeps nobody waiting, and shares hold without it (REL-2)."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from cgpu_node import server
from lab.driver.stopping import stop
from lab.shares.compute import measure, preferring, wait_for
from lab.shares.compute_player import TIMES, gap_after, judge, usual_gap_ms, wait_until
from lab.worlds.compute import PAUSELESS, shares_return

if TYPE_CHECKING:
    from lab.worlds.compute import Players

pytestmark = [pytest.mark.integration, pytest.mark.alone(3), pytest.mark.timeout(600)]

TURNS = 0.1  # seconds in which each of two has several


def test_a_killed_arbiter_costs_nobody_more_than_250_ms(pair: Players) -> None:
    everyone = list(pair.by_tag.values())
    usual = max(usual_gap_ms(player) for player in everyone)
    state = pair.world.state
    gaps: list[float] = []
    returns: list[float] = []
    for _ in range(TIMES):
        time.sleep(TURNS)
        pid = pair.server()
        gaps.append(gap_after(everyone, lambda pid=pid: os.kill(pid, signal.SIGKILL)))
        with preferring():
            server.wake_server(str(state), str(pair.world.driver))
        for player in everyone:
            wait_until(player.is_arbitrated, "an arbiter gives a sign")
        time.sleep(TURNS)
        returns.append(max(player.report().gap_ms for player in everyone))
    judge("arbiter killed", usual, gaps)
    judge("arbiter back", usual, returns)
    assert shares_return(pair)


def test_without_an_arbiter_each_keeps_to_its_own_share(pair: Players) -> None:
    """One to two, by the clock."""
    pid = pair.server()
    pair.end("victim")
    pair.spin("other", "--weight 2", PAUSELESS)
    wait_for(pair.world.driver, ["other"])
    time.sleep(TURNS)
    os.kill(pid, signal.SIGKILL)
    parts = pair.measure(warm_up=1, seconds=5).parts()
    assert abs(parts["other"] - 200 / 3) <= 3


def test_nobody_owes_the_time_in_which_the_arbiter_stood_still(pair: Players) -> None:
    """Half a second in which each keeps to its own part, six times: whoever holds then."""
    pair.measure(warm_up=1, seconds=1)
    pid = pair.server()
    had: dict[str, float] = dict.fromkeys(pair.by_tag, 0)
    for _ in range(6):
        stop(pair.world.driver, pid)
        time.sleep(0.5)
        os.kill(pid, signal.SIGCONT)
        for tag, points in measure(pair.world.driver, pair.by_tag, 0.4).points.items():
            had[tag] = max(had[tag], points)
    assert max(had.values()) < 75
