"""Every check of ``make gpu-check`` as a test: it fails where one does not hold."""

from __future__ import annotations

import pytest

from gpu import catalogue
from gpu.check import PLAIN, Check
from gpu.world import HOLDS, NOT_RUN, World, outcome

pytestmark = pytest.mark.gpu
FACTS = catalogue.of_part("facts")
LIMITS = catalogue.of_part("limits")
SHARES = catalogue.of_part("shares")


def hold(world: World, check: Check) -> None:
    found = outcome(world, check)
    if found.status == NOT_RUN:
        pytest.skip(found.reason)
    assert found.status == HOLDS, (check.statement, found.measured, found.reason)


@pytest.mark.parametrize("check", FACTS, ids=lambda check: check.name)
def test_the_fact_holds_on_this_driver(world: World, check: Check) -> None:
    """docs/gpu-check.md: what the design takes for granted of the driver."""
    assert check.where == PLAIN
    hold(world, check)


@pytest.mark.parametrize("check", LIMITS, ids=lambda check: check.name)
@pytest.mark.parametrize("cage", ["cgpu-run", "runc"])
def test_the_limit_holds_on_this_gpu(world: World, check: Check, cage: str) -> None:
    """MEM-1 to MEM-5, MEM-7."""
    world.cage = next(each for each in world.cages if each.name == cage)
    hold(world, check)


@pytest.mark.timeout(3600)  # a grid of pairs, up to 22 s each
@pytest.mark.parametrize("check", SHARES, ids=lambda check: check.name)
def test_the_share_holds_on_this_gpu(world: World, check: Check) -> None:
    """SCH-3, SCH-6, SCH-7, SCH-11."""
    world.cage = world.cages[0]
    hold(world, check)
