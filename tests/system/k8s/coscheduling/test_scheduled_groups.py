"""Groups of pods with whole GPUs, by the real kube-scheduler: all of a group, or none. COS-7."""

from __future__ import annotations

import signal
import time
from collections import Counter, defaultdict
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from cgpu_k8s import names
from cgpu_k8s.apiserver.client import MERGE
from cgpu_k8s.apiserver.resources import NODES
from cgpu_k8s.objects.gpus import TOPOLOGY
from cgpu_k8s.objects.links import GpuLink
from cgpu_node import allocation_annotation
from lab.cluster import crowd
from lab.containers.enclosure import wait_until
from lab.kubernetes.control_plane import ControlPlane, control_plane
from lab.kubernetes.manifests import V100, gpus, node
from lab.kubernetes.objects import pod, pods_path
from lab.kubernetes.programs import Release
from lab.kubernetes.scheduler import EXTENDER, Replica, install, scheduling

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

Json = dict[str, Any]
NODES_OF_8 = ("gpu-0", "gpu-1")
ISLANDS = (0, 0, 0, 0, 1, 1, 1, 1)
PATIENCE = 120.0


class Cluster(NamedTuple):
    """A control plane with two nodes, and what schedules its pods."""

    plane: ControlPlane
    replica: Replica


@pytest.fixture(scope="module", name="cluster")
def _cluster(tmp_path_factory: pytest.TempPathFactory, release: Release) -> Iterator[Cluster]:
    links = tuple(
        GpuLink("s", 4) if one == other else GpuLink("y") for one, other in combinations(ISLANDS, 2)
    )
    with control_plane(tmp_path_factory.mktemp("plane"), release) as plane:
        install(plane)
        for name in NODES_OF_8:
            made = node(name, gpus(name, *[V100] * 8), TOPOLOGY, links=links)
            made["metadata"]["labels"]["kubernetes.io/hostname"] = name
            made["status"]["allocatable"] |= {"cpu": "64", "memory": "256Gi", "pods": "110"}
            item = {"apiVersion": "v1", "kind": "Node", **made}
            crowd.asked(plane, lambda client, sent=item: client.post(NODES.path(), sent))
        with scheduling(plane) as running:
            yield Cluster(plane, running)


@pytest.fixture(name="plane")
def _plane(cluster: Cluster) -> Iterator[ControlPlane]:
    yield cluster.plane
    crowd.asked(cluster.plane, crowd.remove_pods)


def create(plane: ControlPlane, *pods: Json) -> None:
    for each in pods:
        crowd.asked(plane, lambda client, item=each: client.post(pods_path(), item))


def member(group: str, number: int, size: int, count: int = 2) -> Json:
    made = pod(f"{group}-{number}", {names.WHOLE_GPU: str(count)}, schedulerName="ack-co-scheduler")
    made["metadata"]["labels"] = {"gpu-topology": group, "gpu-topology-replica": str(size)}
    return made


def given(plane: ControlPlane) -> dict[str, list[str]]:
    """The GPUs of each bound pod: its node, and their numbers there."""
    found = {}
    for each in plane.read(pods_path())["items"]:
        if each["spec"].get("nodeName"):
            text = each["metadata"]["annotations"][names.ALLOCATION]
            decided = allocation_annotation.parse_annotation(text)
            found[each["metadata"]["name"]] = sorted(decided.containers["main"])
    return found


def reserved(plane: ControlPlane) -> list[str]:
    """The pods for which room is, or was, reserved."""
    pods = plane.read(pods_path())["items"]
    return [
        each["metadata"]["name"]
        for each in pods
        if names.RESERVATION in each["metadata"].get("annotations", {})
    ]


def touch(plane: ControlPlane) -> None:
    """Change the cluster: else kube-scheduler 1.20 tries what waits only after a minute."""
    label = {"metadata": {"labels": {"touched": str(time.monotonic_ns())}}}
    crowd.asked(plane, lambda client: client.patch(NODES.path(NODES_OF_8[0]), label, MERGE))


def by_group(found: dict[str, list[str]]) -> Counter[str]:
    return Counter(name.rpartition("-")[0] for name in found)


def test_cos_7_the_documents_job_of_two_replicas_is_on_one_island(plane: ControlPlane) -> None:
    for number in range(8):
        create(plane, *(member(f"job{number}", replica, 2, count=1) for replica in range(2)))
    wait_until(lambda: len(given(plane)) == 16, "all replicas are bound", PATIENCE)
    islands: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for name, [uuid] in given(plane).items():
        where, _, gpu = uuid.rpartition("-")
        islands[name.rpartition("-")[0]].add((where, ISLANDS[int(gpu)]))
    assert all(len(each) == 1 for each in islands.values()), islands


def test_cos_7_groups_beyond_what_there_is_have_nothing_until_others_are_gone(
    plane: ControlPlane,
) -> None:
    """Six groups of eight GPUs, of which two nodes have room for two."""
    pods = [member(f"g{group}", number, 4) for number in range(4) for group in range(6)]
    create(plane, *pods)
    for left in (6, 4, 2):
        wait_until(lambda: len(given(plane)) == 8, f"two of {left} groups are bound", PATIENCE)
        assert sorted(by_group(given(plane)).values()) == [4, 4]
        assert len({gpu for each in given(plane).values() for gpu in each}) == 16
        for name in given(plane):
            crowd.asked(plane, lambda client, gone=name: crowd.remove_pod(client, gone))
    wait_until(lambda: not plane.read(pods_path())["items"], "all have been bound", PATIENCE)


def test_cos_7_an_extender_that_is_killed_between_the_bindings_leaves_no_half_group(
    plane: ControlPlane, cluster: Cluster
) -> None:
    replica = cluster.replica
    single = pod("single-0", {names.WHOLE_GPU: "8"}, schedulerName="cgpu-scheduler")
    create(plane, *(member("killed", number, 8) for number in range(8)))
    wait_until(lambda: given(plane), "the first pod is bound", PATIENCE)
    replica.send(signal.SIGKILL, EXTENDER)
    create(plane, single)
    replica.start(EXTENDER)
    wait_until(lambda: by_group(given(plane))["killed"] == 8, "all are bound", PATIENCE)
    assert by_group(given(plane)) == {"killed": 8}


def test_cos_7_a_group_whose_pods_may_not_be_beside_each_other_holds_nothing_for_long(
    plane: ControlPlane,
) -> None:
    """Only kube-scheduler knows of their anti-affinity: it calls no extender about the last two."""
    apart: Json = {"topologyKey": "kubernetes.io/hostname"}
    apart["labelSelector"] = {"matchLabels": {"gpu-topology": "apart"}}
    pods = [member("apart", number, 4, count=4) for number in range(4)]
    for each in pods:
        required = {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
        each["spec"]["affinity"] = {"podAntiAffinity": required}
    create(plane, *pods)
    wait_until(lambda: len(reserved(plane)) == 4, "room is reserved for all", PATIENCE)
    create(plane, pod("single-0", {names.WHOLE_GPU: "8"}, schedulerName="cgpu-scheduler"))
    sentence = "2 of its 4 pods did not come in time"
    wait_until(lambda: sentence in str(plane.read(pods_path())), "it is refused", PATIENCE)
    touch(plane)
    wait_until(lambda: given(plane), "a pod is bound", PATIENCE)
    assert [*given(plane)] == ["single-0"]
