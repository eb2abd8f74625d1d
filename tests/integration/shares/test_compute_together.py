"""Containers whose processes meet across two simulated GPUs, in real time (SCH-12).

How fast they are beside each other is for the model (``c/test_model.py``): here it is a question of
the machine's processors, too.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from lab.machine.servers import serving
from lab.shares.compute import built, prefer, read_times, wait_for
from lab.shares.gatewatch import STATES
from lab.worlds.compute import Players

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab.shares.compute_player import Player

pytestmark = [pytest.mark.integration, pytest.mark.alone(7), pytest.mark.timeout(300)]

TAGS = ("one", "two")
GPUS = range(2)
SECONDS = 4.0
POINTS = 1.0


@pytest.fixture
def players() -> Iterator[Players]:
    made = Players(gpus=len(GPUS))
    yield made
    made.stop()


def begin(players: Players, tag: str, how: str) -> Player:
    """Start ``programs/compute/meet.c``; returns when it computes."""
    player = players.start(tag, "", built("meet"), "us=200", "kernels=2", f"how={how}")
    wait_for(players.world.driver, [tag])
    prefer(serving(players.world.state))
    return player


def parts(values: list[int]) -> list[float]:
    return [100 * value / sum(values) for value in values]


@pytest.mark.parametrize("how", ["thread", "processes"])
def test_the_gpus_of_two_that_meet_there_take_turns_together(players: Players, how: str) -> None:
    """In a moment a container's gates are all open, or all closed; each of two has turns."""
    pages = [begin(players, tag, how).watched.limits.gpus for tag in TAGS]
    time.sleep(1)
    looks, deadline = [], time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        looks += [[STATES[gpus[gpu].gate & 3] == "closed" for gpu in GPUS] for gpus in pages]
        time.sleep(0.001)
    closed = [all(each) for each in looks]
    apart = sum(any(each) for each in looks) - sum(closed)
    print(len(looks), sum(closed), apart)  # noqa: T201
    assert apart <= 0.05 * len(looks)
    assert min(sum(closed[turn::2]) for turn in range(2)) >= 0.1 * len(looks)


def test_each_pays_on_each_gpu_for_what_it_used_there(players: Players) -> None:
    made = [begin(players, tag, "processes") for tag in TAGS]
    driver = players.world.driver
    time.sleep(1)
    before = [(read_times(driver, gpu), [charged(player, gpu) for player in made]) for gpu in GPUS]
    time.sleep(SECONDS)
    for gpu, (used_before, charged_before) in zip(GPUS, before, strict=True):
        used, paid = read_times(driver, gpu), [charged(player, gpu) for player in made]
        of_use = parts([used[tag] - used_before[tag] for tag in TAGS])
        of_charge = parts([now - then for now, then in zip(paid, charged_before, strict=True)])
        print(of_use, of_charge)  # noqa: T201
        assert abs(of_use[0] - of_charge[0]) <= POINTS


def charged(player: Player, gpu: int) -> int:
    return int(player.watched.limits.gpus[gpu].charged_ns)
