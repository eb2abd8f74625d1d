"""A real kubelet whose node gives whole GPUs, by the links between them. COS-6, COS-8."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cgpu_k8s.names import FACTS, GPU_VISIBLE, SCHEDULE, WHOLE_GPU
from lab.containers.enclosure import wait_until
from lab.kubernetes import scheduler
from lab.kubernetes.control_plane import control_plane
from lab.kubernetes.kubectl import MEM, PATIENCE, Kubectl, asking, decided
from lab.kubernetes.kubelet import V100, kubelet_node
from lab.kubernetes.programs import Release

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

ISLANDS = [1, 2, 2, 1, 1, 2, 1, 2]  # of the node's GPUs, by index


@pytest.fixture(scope="module", name="cluster")
def _cluster(
    tmp_path_factory: pytest.TempPathFactory, debian_root: Path, release: Release
) -> Iterator[Kubectl]:
    gpus = (f"{V100}@{island}" for island in ISLANDS)
    with control_plane(tmp_path_factory.mktemp("plane"), release) as plane:
        scheduler.install(plane)
        with (
            kubelet_node(plane, debian_root, "topology", *gpus) as node,
            scheduler.scheduling(plane),
        ):
            yield Kubectl(node)


@pytest.fixture(name="kubectl")
def _kubectl(cluster: Kubectl) -> Iterator[Kubectl]:
    cluster.node.wait_until(
        lambda: cluster.published(WHOLE_GPU) == "8" and _has_facts(cluster), "8 GPUs", "agent"
    )
    yield cluster
    cluster.clear()
    wait_until(lambda: not cluster.get("pods")["items"], "the pods are gone", PATIENCE)


def _has_facts(kubectl: Kubectl) -> bool:
    [node] = kubectl.get("nodes")["items"]
    return FACTS in node["metadata"]["annotations"]


def test_cos_6_each_pair_of_gpus_is_of_one_island_and_all_that_its_pod_sees(
    kubectl: Kubectl,
) -> None:
    names = ["a", "b", "c", "d"]
    kubectl.create(*(asking(name, {WHOLE_GPU: 2}) for name in names))
    given: list[int] = []
    for pod in kubectl.running(*names):
        seen = kubectl.seen(pod)
        assert seen == decided(pod)
        assert list(seen.values()) == [16160, 16160]
        assert "cgpu" not in kubectl.execute(pod, "main", "ls", "/dev").split()
        one, other = map(int, pod["metadata"]["annotations"][GPU_VISIBLE].split(","))
        assert ISLANDS[one] == ISLANDS[other]
        given += [one, other]
    assert sorted(given) == list(range(8))
    assert kubectl.node.shares() == []  # whole GPUs have no caps


def test_cos_6_who_finds_no_gpu_or_asks_for_a_part_is_told_why(kubectl: Kubectl) -> None:
    kubectl.create(asking("most", {WHOLE_GPU: 7}))
    kubectl.running("most")
    kubectl.create(asking("two", {WHOLE_GPU: 2}), asking("part", {MEM: 2}))
    free = "only 1 GPU is free as a whole, and 2 are asked for"
    taken = "ack.node.gpu.schedule=topology: the node takes no pod without aliyun.com/gpu"
    for name, resource, why in (("two", WHOLE_GPU, free), ("part", MEM, taken)):
        events = f"--field-selector=involvedObject.name={name},reason=FailedScheduling"
        wait_until(lambda of=events: kubectl.get("events", of)["items"], "it waits", PATIENCE)
        found = {each["message"] for each in kubectl.get("events", events)["items"]}
        assert any(f"Insufficient {resource}." in each for each in found), found
        assert why in kubectl.inspect("--why", name)
    kubectl("delete", "pod", "most", "--grace-period=0", "--force")
    [two] = kubectl.running("two")
    assert len(kubectl.seen(two)) == 2


def test_cos_6_a_node_that_is_labelled_anew_shares_its_gpus_once_no_pod_has_one(
    kubectl: Kubectl,
) -> None:
    kubectl.create(asking("one", {WHOLE_GPU: 1}))
    kubectl.running("one")
    label = ("label", "node", kubectl.node.name, "--overwrite")
    kubectl(*label, f"{SCHEDULE}=cgpu")
    try:
        events = "--field-selector=reason=GpuModeHeld"
        wait_until(lambda: kubectl.get("events", events)["items"], "it says so", PATIENCE)
        kubectl("delete", "pod", "one", "--grace-period=0", "--force")
        wait_until(lambda: kubectl.published(MEM) == "120", "its GPUs are shared", PATIENCE)
        assert kubectl.published(WHOLE_GPU) in {"", "0"}
        kubectl.create(asking("part", {MEM: 2}))
        [part] = kubectl.running("part")
        assert list(kubectl.seen(part).values()) == [2154]
        kubectl("delete", "pod", "part", "--grace-period=0", "--force")
    finally:
        kubectl(*label, f"{SCHEDULE}=topology")
