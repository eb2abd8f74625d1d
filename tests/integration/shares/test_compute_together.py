"""Containers whose processes meet across two simulated GPUs, in real time (SCH-12).

They meet on the host, where GPUs that take turns apart may fall into step by chance: what tells
the two apart without fail is the model (``c/test_model.py``), whose kernels meet on the GPUs.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import pytest

from lab.machine.servers import serving
from lab.shares.compute import built, prefer, read_times, wait_for
from lab.worlds.compute import Players

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab.shares.compute_player import Player

pytestmark = [pytest.mark.integration, pytest.mark.alone(7), pytest.mark.timeout(300)]

TAGS = ("one", "two")
GPUS = range(2)
SECONDS = 4.0
LEAST, LONGEST_MS, POINTS = 0.4, 100, 1.0
TRIES = 3  # one of them is to be good: other programs of the machine take its processors


class Rate(NamedTuple):
    """Steps per second over some seconds, and the longest step."""

    steps: float
    longest_ms: float


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


def rates(*players: Player) -> list[Rate]:
    """Of the next seconds."""
    before = [player.report() for player in players]
    began = time.monotonic()
    time.sleep(SECONDS)
    after = [player.report() for player in players]
    seconds = time.monotonic() - began
    return [
        Rate((ends.launches - begins.launches) / seconds, ends.gap_ms)
        for begins, ends in zip(before, after, strict=True)
    ]


def judged(alone: Rate, both: list[Rate]) -> str:
    """What is wrong with the rates of two beside each other; empty if nothing is."""
    print(alone, both)  # noqa: T201
    slow = min(rate.steps for rate in both) < LEAST * alone.steps
    late = max(rate.longest_ms for rate in both) > LONGEST_MS
    return f"{alone} alone, {both}" if slow or late else ""


def parts(values: list[int]) -> list[float]:
    return [100 * value / sum(values) for value in values]


@pytest.mark.parametrize("how", ["thread", "processes"])
def test_two_that_meet_on_the_same_gpus_run_at_40_percent_of_their_rates(
    players: Players, how: str
) -> None:
    one = begin(players, "one", how)
    (alone,) = rates(one)
    two = begin(players, "two", how)
    wrong = []
    while len(wrong) < TRIES and (found := judged(alone, rates(one, two))):
        wrong.append(found)
    assert len(wrong) < TRIES, wrong


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
