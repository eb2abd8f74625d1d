"""Claims while a GPU is lost, and claims with parameters, on a real kubelet. DRA-8."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_k8s.apiserver.resources import NODES
from cgpu_k8s.dra import publisher
from cgpu_sim import lose
from lab.cluster.claims import NODE
from lab.cluster.dra_node import DRIVER, Claiming, claim, claiming
from lab.cluster.published import LOST, ONE, TWO, publishing
from lab.kubernetes.control_plane import control_plane
from lab.kubernetes.objects import node
from lab.kubernetes.programs import Release, newer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), newer]

URGENT = "urgent.gpu.cgpu"
_ABOUT = {"apiVersion": "gpu.cgpu/v1alpha1", "kind": "GpuConfig"}


def configured(item: Any, **parameters: Any) -> Any:
    """A claim or class with parameters for our driver."""
    spec = item["spec"].get("devices", item["spec"])
    spec["config"] = [{"opaque": {"driver": DRIVER, "parameters": {**_ABOUT, **parameters}}}]
    return item


@pytest.fixture(name="urgent")
def _urgent(kubectl: Claiming) -> Iterator[str]:
    """A class that gives high priority, and weight 3 to claims that name none."""
    spec = {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}
    about = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"}
    item = {**about, "metadata": {"name": URGENT}, "spec": spec}
    kubectl.create(configured(item, priority="high", weight=3))
    yield URGENT
    kubectl("delete", "deviceclass", URGENT)


def taints(kubectl: Claiming) -> dict[str, list[tuple[str, str, str]]]:
    """The taints of each device that the node offers."""
    return {
        device["name"]: [
            (taint["key"], taint["value"], taint["effect"]) for taint in device.get("taints", [])
        ]
        for device in kubectl.node.devices()
    }


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
    kubectl.await_event("three", "cannot allocate all claims")
    [still] = kubectl.running("one")
    assert still["status"]["containerStatuses"] == one["status"]["containerStatuses"]
    [unchanged] = kubectl.get("resourceslices")["items"]
    assert unchanged == item  # nothing is written while nothing changes
    lose(node.installed.node.driver, 0, 0)
    node.wait_until(lambda: taints(kubectl) == {"gpu-0": [], "gpu-1": []}, "it is back", "driver")
    [three] = kubectl.running("three")
    assert lost in kubectl.seen(three)
    assert "does not answer: GPU is lost" in node.log("driver")


def test_dra_8_a_claims_parameters_are_its_weight_and_its_priority(
    kubectl: Claiming, urgent: str
) -> None:
    plain, both = claim("plain", memory="1Gi"), claim("both", memory="1Gi")
    low, cores = claim("low", memory="1Gi"), claim("cores", memory="1Gi", cores="30")
    for item in (both, low, cores):
        item["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = urgent
    kubectl.create(
        plain,
        both,
        configured(low, weight=2, priority="normal"),
        cores,
        *(claiming(name, name) for name in ("plain", "both", "low", "cores")),
    )
    kubectl.running("plain", "both", "low", "cores")
    held = {each["name"]: (each["weight"], each["high_priority"]) for each in kubectl.node.shares()}
    assert {name.partition("/")[2]: each for name, each in held.items()} == {
        "plain": (0, False),
        "both": (3, True),
        "low": (2, False),
        "cores": (6, True),
    }


def test_dra_8_pods_whose_claims_have_wrong_parameters_wait_with_a_sentence(
    kubectl: Claiming,
) -> None:
    wrong: dict[str, tuple[Any, str]] = {
        "name": (
            {"wieght": 4},
            "unknown field wieght: expected apiVersion, kind, weight, priority",
        ),
        "range": ({"weight": 21}, "weight=21: expected a whole number from 1 to 20"),
        "right": (
            {"priority": "high"},
            "priority=high: it takes time from what other claims were promised,",
        ),
        "more": (
            {"weight": 1},
            "weight=1: weight is taken from what the scheduler counts as free,",
        ),
    }
    for name, (parameters, _) in wrong.items():
        kubectl.create(
            configured(claim(name, memory="1Gi"), **parameters), claiming(f"no-{name}", name)
        )
    for name, (_, sentence) in wrong.items():
        words = f"cgpu: claim default/{name}: config of the claim: {sentence}"
        kubectl.await_event(f"no-{name}", words)
    assert (kubectl.node.containers(), kubectl.node.cdi_files()) == ([], [])


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
