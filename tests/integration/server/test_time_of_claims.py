"""A server gives claims without cores what the others leave of a GPU's time. DRA-2."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cgpu_env import GpuShare, Request
from cgpu_node.shares.record import Owner
from lab.worlds.server import MIB, NODE, UUIDS, World, is_arbitrated, page, wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration


def claim(world: World, name: str, gib: int, weight: int = 0) -> Path:
    """A claim for the first GPU."""
    share = GpuShare(0, UUIDS[0], gib << 10 << 20)
    owner = Owner(0, 0, str(world.state))
    request = Request((share,), weight, high_priority=False)
    return world.state / world.registry.admit(name, "claim", request, NODE, owner, ["ml/train"])


def await_parts(directories: dict[Path, float]) -> None:
    """Wait until the arbiter has taken all on and gives them these parts, in percent."""

    def is_so() -> bool:
        return all(
            is_arbitrated(each) and round(page(each).share_ppm / 10_000, 1) == part
            for each, part in directories.items()
        )

    wait_until(is_so, f"parts are {[*directories.values()]}")


def test_dra_2_the_arbiter_divides_anew_what_is_left_when_claims_come_and_go(world: World) -> None:
    """As does admission, until the arbiter knows of it."""
    promised, small = claim(world, "promised", 1, weight=6), claim(world, "small", 2)
    world.start()
    await_parts({promised: 30.0, small: 70.0})
    large = claim(world, "large", 4)
    assert [round(page(each).share_ppm / 10_000, 1) for each in (small, large)] == [23.4, 46.6]
    await_parts({promised: 30.0, small: 23.4, large: 46.6})
    claim(world, "more", 1, weight=14)
    await_parts({promised: 29.9, small: 0.1, large: 0.3})
    for name in ("more", "promised"):
        world.registry.remove(name)
    await_parts({small: 33.4, large: 66.7})
    shown = {each["id"]: each for each in world.ask({"request": "status"})["containers"]}
    assert [shown[name]["weight"] for name in ("small", "large")] == [0, 0]


def test_dra_2_weight_that_is_left_is_left_for_others_and_shown(world: World) -> None:
    claim(world, "rest", 2)
    world.start()
    [gpu, *_] = world.ask({"request": "status"})["gpus"]
    assert (gpu["containers"], gpu["free_weight"]) == (1, 20)
    assert world.ask({"request": "get", "path": "0/rest/weight"})["value"] == "0"
    assert page(claim(world, "all", 1, weight=20)).cap_bytes == 1024 * MIB
