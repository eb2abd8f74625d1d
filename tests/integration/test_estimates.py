"""What is shown of compute where nobody measures it (CLI-3, SCH-4)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from audit_world import FAST, Audited, scrape
from audited import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration


@pytest.fixture
def world() -> Iterator[Audited]:
    made = Audited()
    yield made
    made.close()


@pytest.mark.parametrize("policy", ["6", "5"])
def test_a_busy_gpu_is_seen_where_nobody_measures(world: Audited, policy: str) -> None:
    """A container alone on its GPU; its counter goes on."""
    world.serve(FAST, "--metrics", "127.0.0.1:0")
    world.busy("--policy", policy)

    def is_seen() -> bool:
        said = world.smi()
        if not said["containers"]:  # it is being admitted
            return False
        (gpu,), (container,) = said["gpus"], said["containers"]
        (its,) = container["gpus"]
        return (
            gpu["measured_percent"] is its["measured_percent"] is None
            and (gpu["utilisation_percent"] or 0) > 0
            and its["estimated_percent"] == gpu["utilisation_percent"]
        )

    until(is_seen, "it is busy, by whom is an estimate")
    for name in ("cgpu_container_compute_seconds_total", "cgpu_gpu_busy_seconds_total"):
        for _ in range(2):
            before = scrape(world)[name]
            until(lambda: scrape(world)[name] > before, f"{name} goes on")  # noqa: B023 (now)
    assert 0 < scrape(world)["cgpu_gpu_utilisation_ratio"] <= 1


def test_shares_that_are_not_measured_are_estimates_everywhere(world: Audited) -> None:
    """Under policy 4 programs run at once, and whose time it was is a guess."""
    world.serve(FAST, "--metrics", "127.0.0.1:0")
    for _ in range(2):
        world.busy("--policy", "4")

    def are_seen() -> bool:
        shares = [gpu for each in world.smi()["containers"] for gpu in each["gpus"]]
        return len(shares) == 2 and all(
            its["measured_percent"] is None and (its["estimated_percent"] or 0) > 0
            for its in shares
        )

    until(are_seen, "both have a share, and neither is measured")
    said = world.cgpu("get")
    assert len(re.findall(r"measured=~\d+%", said)) == 2, said
    figures = scrape(world)
    assert "cgpu_container_compute_used_ratio" not in figures
    assert figures["cgpu_container_compute_estimated_ratio"] > 0
