"""Claims while a GPU is lost, on a real kubelet. DRA-8."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from cgpu_k8s.apiserver.resources import NODES
from cgpu_k8s.dra import publisher
from cgpu_sim import lose
from lab.cluster.claims import NODE
from lab.cluster.dra_node import Claiming, claim, claiming
from lab.cluster.published import LOST, ONE, TWO, publishing
from lab.containers.enclosure import wait_until
from lab.kubernetes.control_plane import control_plane
from lab.kubernetes.kubectl import PATIENCE
from lab.kubernetes.objects import node
from lab.kubernetes.programs import Release, newer

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), newer]


def taints(kubectl: Claiming) -> dict[str, list[tuple[str, str, str]]]:
    """The taints of each device that the node offers."""
    return {
        device["name"]: [
            (taint["key"], taint["value"], taint["effect"]) for taint in device.get("taints", [])
        ]
        for device in kubectl.node.devices()
    }


def await_event(kubectl: Claiming, name: str, reason: str) -> str:
    """The message of a pod's event with this reason, once there is one."""
    chosen = f"--field-selector=involvedObject.name={name},reason={reason}"
    wait_until(lambda: kubectl.get("events", chosen)["items"], f"{name} has an event", PATIENCE)
    [event, *_] = kubectl.get("events", chosen)["items"]
    return str(event["message"])


def test_dra_8_claims_go_around_a_gpu_that_is_lost_until_it_is_back(kubectl: Claiming) -> None:
    """The pod on it stays."""
    node = kubectl.node
    kubectl.create(claim("a", memory="1Gi"), claiming("one", "a"))
    [one] = kubectl.running("one")
    [lost] = kubectl.seen(one)
    lose(node.installed.node.driver, 0)
    taint = ("gpu.cgpu/unhealthy", "GPU-is-lost-error-15", "NoSchedule")
    seen = {"gpu-0": [taint], "gpu-1": []}
    node.wait_until(lambda: taints(kubectl) == seen, "it has a taint", "driver")
    [item] = kubectl.get("resourceslices")["items"]
    kubectl.create(claim("b", memory="1Gi"), claiming("two", "b"))
    [two] = kubectl.running("two")
    assert lost not in kubectl.seen(two)
    wide = claim("wide", memory="1Gi")
    wide["spec"]["devices"]["requests"][0]["exactly"]["count"] = 2
    kubectl.create(wide, claiming("three", "wide"))
    assert "cannot allocate all claims" in await_event(kubectl, "three", "FailedScheduling")
    [still] = kubectl.running("one")
    assert still["status"]["containerStatuses"] == one["status"]["containerStatuses"]
    [unchanged] = kubectl.get("resourceslices")["items"]
    assert unchanged == item  # nothing is written while nothing changes
    lose(node.installed.node.driver, 0, 0)
    node.wait_until(lambda: taints(kubectl) == {"gpu-0": [], "gpu-1": []}, "it is back", "driver")
    [three] = kubectl.running("three")
    assert lost in kubectl.seen(three)
    assert "does not answer: GPU is lost" in node.log("driver")


@pytest.mark.parametrize("is_kept", [True, False])
def test_dra_8_an_api_server_says_by_its_answer_whether_it_has_taints(
    tmp_path: Path, release: Release, monkeypatch: pytest.MonkeyPatch, *, is_kept: bool
) -> None:
    """The feature's gate is on or, as it is before Kubernetes 1.36, off."""
    monkeypatch.setattr(publisher, "LOOK", 0.2)
    gate = f"--feature-gates=DRADeviceTaints={str(is_kept).lower()}"

    async def work() -> None:
        async with publishing(plane.cluster()) as found:
            await found.until({"gpu-0": [], "gpu-1": []})
            found.gpus = [ONE, TWO._replace(problem=LOST)]
            await found.until({"gpu-0": [], **({"gpu-1": [LOST.taint]} if is_kept else {})})
            await found.rested()
            errors = found.reported("failed")
            assert any("the API server drops taints" in each for each in errors) is not is_kept
            found.gpus = [ONE, TWO]
            await found.until({"gpu-0": [], "gpu-1": []})
            await found.rested()

    with control_plane(tmp_path, release, gate) as plane:
        plane.create(NODES.path(), node(NODE))
        asyncio.run(work())
