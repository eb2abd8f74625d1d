"""Whatever is killed, stopped or starved: caps hold, nothing leaks and shares return (SPEC REL).

Faults are drawn by a generator from a seed. ``make faults`` runs them for ten minutes. To replay a
run that failed: ``CGPU_FAULT_SEED=<seed> make faults``; ``CGPU_FAULT_ONLY=kill_server,storm`` draws
from these alone. ``docs/faults.md`` says more.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from faults import invariants
from faults.faults import FAULTS
from faults.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SECONDS = float(os.environ.get("CGPU_FAULT_SECONDS", "30"))
SEED = os.environ.get("CGPU_FAULT_SEED") or str(random.SystemRandom().randrange(1 << 32))
ONLY = os.environ.get("CGPU_FAULT_ONLY", "").split(",") if "CGPU_FAULT_ONLY" in os.environ else None

pytestmark = [pytest.mark.system, pytest.mark.starves, pytest.mark.timeout(SECONDS * 2 + 300)]


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    made.note_mounts()
    yield made
    made.close()


def _drawn() -> Iterator[tuple[int, Callable[[World, random.Random], str], random.Random]]:
    """Steps without end: each kind once in a random order, and again."""
    kinds = [fault for fault in FAULTS if ONLY is None or fault.__name__ in ONLY]
    number = 0
    while True:
        for fault in random.Random(f"{SEED} {number}").sample(kinds, len(kinds)):
            yield number, fault, random.Random(f"{SEED} {number} {fault.__name__}")
            number += 1


def test_whatever_fails_caps_hold_nothing_leaks_and_shares_return(world: World) -> None:
    """REL-1..3, REL-5, MEM-6..8, SCH-9."""
    began = time.monotonic()
    counts: Counter[str] = Counter()
    world.populate()
    watch = invariants.Watch(world)
    print(f"CGPU_FAULT_SEED={SEED}")  # noqa: T201
    try:
        invariants.wait(world)
        for number, fault, rng in _drawn():
            if time.monotonic() - began > SECONDS:
                break
            print(f"{time.monotonic() - began:6.1f} s  step {number}: {fault.__name__}", end=": ")  # noqa: T201
            print(fault(world, rng), flush=True)  # noqa: T201
            counts[fault.__name__] += 1
            invariants.wait(world)
            world.populate()
            invariants.wait(world)
            invariants.admission(world, number)
            invariants.shares(world)
            assert watch.found == []
        for member in [*world.members]:
            world.remove(member)
        invariants.wait(world)
    finally:
        watch.close()
    print(f"{sum(counts.values())} steps, {world.made} containers, {watch.looks} looks: {counts}")  # noqa: T201
