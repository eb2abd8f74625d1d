"""What is shown of compute where nobody measures it (CLI-3, SCH-4)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from cgpu_env import CgpuError
from cgpu_server.audit.driver_probe import DriverProbe
from cgpu_sim import Fault, inject
from lab.machine.audited import until
from lab.worlds.audit import FAST, Audited, scrape

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

OLDER, NEWER = "nvmlDeviceGetProcessUtilization", "nvmlDeviceGetProcessesUtilizationInfo"


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
        output = world.smi()
        if not output["containers"]:  # it is being admitted
            return False
        (gpu,), (container,) = output["gpus"], output["containers"]
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

    until(are_seen, "both have a share, and neither is measured", 60)
    output = world.cgpu("get")
    assert len(re.findall(r"measured=~\d+%", output)) == 2, output
    figures = scrape(world)
    assert "cgpu_container_compute_used_ratio" not in figures
    assert figures["cgpu_container_compute_estimated_ratio"] > 0


def test_several_that_nobody_measures_have_what_the_driver_says_of_their_processes(
    world: Audited,
) -> None:
    """Under policy 5; then one of them rests."""
    world.serve(FAST)
    busy = [world.busy("--policy", "5") for _ in range(2)]
    until(lambda: _known(estimates(world)) == [True, True], "both have a share", 60)
    assert busy[0].stdin is not None
    busy[0].stdin.write("rest\n")
    busy[0].stdin.flush()
    until(lambda: _known(estimates(world)) == [False, True], "one of them has none", 60)


@pytest.mark.parametrize("result", [3, 6, 13])
def test_a_driver_whose_older_function_has_no_figures_is_asked_by_the_newer(
    world: Audited, result: int
) -> None:
    """As of Blackwell, by reports: it supports that no more, finds nobody, or has it no more."""
    inject(world.driver, Fault(OLDER, result=result, repeat=True))
    world.serve(FAST)
    for _ in range(2):
        world.busy("--policy", "5")
    until(lambda: _known(estimates(world)) == [True, True], "both have a share", 60)


@pytest.mark.parametrize("result", [3, 13, 999])
def test_a_driver_that_says_nothing_of_processes_leaves_the_gpus_figure(
    world: Audited, result: int
) -> None:
    """It does not support that, lacks the functions, or fails."""
    for name in (OLDER, NEWER):
        inject(world.driver, Fault(name, result=result, repeat=True))
    world.serve(FAST)
    for _ in range(2):
        world.busy("--policy", "5")
    until(lambda: len(estimates(world)) == 2, "both are there", 60)
    until(lambda: world.smi()["gpus"][0]["utilisation_percent"], "the GPU is busy", 60)
    assert estimates(world) == [None, None]
    assert not world.logged("audit_fails")


def test_a_driver_that_hangs_when_asked_of_processes_is_not_asked_again(world: Audited) -> None:
    (uuid,) = DriverProbe(str(world.driver)).read()
    inject(world.driver, Fault(OLDER, delay_us=600_000_000, repeat=True))
    probe = DriverProbe(str(world.driver), patience=3)
    with pytest.raises(CgpuError):
        probe.read([uuid])
    probe.patience = 60
    assert probe.read([uuid])[uuid].busy is None
    probe.close()


def _known(found: list[float | None]) -> list[bool] | None:
    """Whether each has more than nothing, sorted; None where one is not known."""
    return sorted(n > 0 for n in found if n is not None) if None not in found else None


def estimates(world: Audited) -> list[float | None]:
    """Of the sessions."""
    return [gpu["estimated_percent"] for each in world.smi()["containers"] for gpu in each["gpus"]]
