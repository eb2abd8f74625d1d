"""Claims by class, attributes, resource and parameters, also while a GPU is lost. DRA-3, DRA-8.

On a real kubelet. What DRA-3 runs has the shapes of the demo of NVIDIA's driver.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_k8s.apiserver.resources import NODES
from cgpu_k8s.dra import publisher
from cgpu_sim import lose
from lab.cluster.claims import NODE
from lab.cluster.dra_node import DRIVER, Claiming, claim, claiming, templated
from lab.cluster.published import LOST, ONE, TWO, publishing
from lab.kubernetes.control_plane import control_plane
from lab.kubernetes.kubectl import asking
from lab.kubernetes.objects import node
from lab.kubernetes.programs import Release, newer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), newer]

URGENT = "urgent.gpu.cgpu"
NVIDIAS, RESOURCE, WHOLE = "gpu.nvidia.com", "nvidia.com/gpu", 16160
_ABOUT = {"apiVersion": "gpu.cgpu/v1alpha1", "kind": "GpuConfig"}
_SELECTED = (
    f'device.attributes["{NVIDIAS}"].productName.lowerAscii().matches("^.*v100.*$") &&'
    f' device.attributes["{NVIDIAS}"].architecture == "Turing" &&'  # by its capability, 7.5
    f' device.attributes["{NVIDIAS}"].index in [0, 1, 2] &&'
    f' device.capacity["{NVIDIAS}"].memory.isGreaterThan(quantity("8Gi"))'
)
_MPS = {"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "4Gi"}}


def configured(item: Any, **parameters: Any) -> Any:
    """A claim or class with parameters for our driver."""
    spec = item["spec"].get("devices", item["spec"])
    spec["config"] = [{"opaque": {"driver": DRIVER, "parameters": {**_ABOUT, **parameters}}}]
    return item


def requesting(name: str, *requests: str, class_name: str = NVIDIAS) -> Any:
    """A claim with a request of each name for a GPU of a class."""
    found = claim(name)
    exactly = {"deviceClassName": class_name}
    found["spec"]["devices"]["requests"] = [{"name": each, "exactly": exactly} for each in requests]
    return found


def test_dra_3_pods_from_a_template_for_nvidias_driver_have_whole_gpus_and_one_waits(
    kubectl: Claiming,
) -> None:
    source = [{"name": "gpu", "resourceClaimTemplateName": "whole"}]
    pods = [claiming(name, "", resourceClaims=source) for name in ("one", "two", "three")]
    kubectl.create(templated("whole", _SELECTED), *pods[:2])
    one, two = kubectl.running("one", "two")
    assert [*kubectl.seen(one).values()] == [*kubectl.seen(two).values()] == [WHOLE]
    assert kubectl.seen(one).keys().isdisjoint(kubectl.seen(two))
    kubectl.create(pods[2])
    kubectl.await_event("three", "cannot allocate all claims")
    kubectl("delete", "resourceclaimtemplates", "--all")


def test_dra_3_containers_of_two_pods_share_claims_whose_sharing_is_nvidias(
    kubectl: Claiming,
) -> None:
    """Time slices and MPS are parameters for NVIDIA's driver, and none for ours."""
    item = requesting("common", "sliced", "served")
    slices = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
    item["spec"]["devices"]["config"] = [
        {"requests": [request], "opaque": {"driver": NVIDIAS, "parameters": {
            "apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}}}
        for request, sharing in (("sliced", slices), ("served", _MPS))
    ]  # fmt: skip
    pods = [claiming(name, "common", "main", "side", "both") for name in ("one", "two")]
    for pod in pods:
        for container, request in zip(
            pod["spec"]["containers"], ("sliced", "served"), strict=False
        ):
            container["resources"]["claims"][0]["request"] = request
    kubectl.create(item, *pods)
    seen = [
        [kubectl.seen(pod, each) for each in ("main", "side", "both")]
        for pod in kubectl.running("one", "two")
    ]
    assert seen[0] == seen[1]
    sliced, served, both = seen[0]
    assert [*sliced.values()] == [*served.values()] == [WHOLE]
    assert both == {**sliced, **served}
    assert len(both) == len(("sliced", "served"))
    [share] = kubectl.node.shares()
    assert share["name"] == "default/common"


def test_dra_3_pods_ask_for_whole_gpus_by_the_resource_of_nvidias_device_plugin(
    kubectl: Claiming,
) -> None:
    """Each container has its own, and shows it; claims for parts go elsewhere, or wait."""
    plain = {"schedulerName": "default-scheduler"}
    kubectl.create(asking("one", {RESOURCE: "1"}, {RESOURCE: "1"}, **plain))
    [one] = kubectl.running("one")
    seen = [kubectl.seen(one), kubectl.seen(one, "side")]
    assert [[*each.values()] for each in seen] == [[WHOLE], [WHOLE]]
    assert seen[0].keys().isdisjoint(seen[1])
    [share] = kubectl.node.shares()
    assert share["pods"] == ["default/one/main", "default/one/side"]
    kubectl.create(asking("two", {RESOURCE: "2"}, **plain), claim("a", memory="1Gi"))
    kubectl.create(claiming("three", "a"))
    for name in ("two", "three"):
        kubectl.await_event(name, "cannot allocate all claims")
    why = f"pod default/two waits: {RESOURCE}: no GPU has {WHOLE} MiB of memory left"
    assert kubectl.inspect("--why", "two").startswith(why)
    kubectl("delete", "pod", "three", "one", "--grace-period=1")
    [two] = kubectl.running("two")
    assert [*kubectl.seen(two).values()] == [WHOLE, WHOLE]


def test_dra_3_pods_that_want_what_only_nvidias_driver_gives_wait_with_its_class(
    kubectl: Claiming,
) -> None:
    kubectl.create(
        requesting("instance", "gpu", class_name="mig.nvidia.com"), claiming("one", "instance")
    )
    kubectl.await_event("one", "device class mig.nvidia.com does not exist")


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
