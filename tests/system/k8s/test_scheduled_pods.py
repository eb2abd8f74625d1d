"""The real kube-scheduler 1.20.2 with the extender: each decision is one that a node can follow."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from cgpu_k8s import names
from cgpu_k8s.api.client import Client, connected
from cgpu_k8s.api.resources import NODES, PODS
from cgpu_k8s.api.watch import DELETED, Changed, Listed, Watch
from cgpu_node import decision
from lab.kubernetes import chart
from lab.kubernetes.control_plane import Call, ControlPlane, control_plane
from lab.kubernetes.manifests import V100, gpus, node
from lab.kubernetes.objects import pod, pods_path
from lab.kubernetes.scheduler import EXTENDER, install, scheduling

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.system

Json = dict[str, Any]
NAMES = [f"gpu-{number}" for number in range(10)]
UNITS = 15  # GiB that a V100 counts
# How many pods ask for how many GiB, of how many GPUs: the largest first, which wastes least.
ASKED = {(15, 1): 1, (8, 2): 9, (5, 1): 10, (3, 1): 30}
PATIENCE = 120.0  # seconds


class Scheduled(NamedTuple):
    """A control plane whose pods are scheduled, and the extender's address."""

    plane: ControlPlane
    extender: str


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduled]:
    with control_plane(tmp_path_factory.mktemp("plane")) as running:
        install(running)
        asyncio.run(_prepare(running))
        with scheduling(running) as replica:
            yield Scheduled(running, replica.address)


@pytest.fixture
def plane(cluster: Scheduled) -> ControlPlane:
    return cluster.plane


async def _prepare(plane: ControlPlane) -> None:
    """Ten nodes with two GPUs each."""
    async with connected(plane.cluster()) as client:
        for name in NAMES:
            made = node(name, gpus(name, V100, V100))
            made["status"]["allocatable"] |= {"cpu": "64", "memory": "256Gi", "pods": "110"}
            await client.post(NODES.path(), {"apiVersion": "v1", "kind": "Node", **made})


def limited(name: str, units: int, count: int = 1, scheduler: str = names.SCHEDULERS[0]) -> Json:
    made = pod(name, {names.MEMORY: str(units)}, schedulerName=scheduler)
    made["metadata"]["labels"] = {names.COUNT: str(count)}
    return made


async def scheduled(client: Client, wanted: set[str]) -> dict[str, Json]:
    """The pods of these names, when each is on a node; the writes that put them there are one."""
    found: dict[str, Json] = {}
    async for event in Watch(client, PODS.path(), dict):
        items = event.items if isinstance(event, Listed) else [event.item]
        for each in items:
            name = each["metadata"]["name"]
            if each["spec"].get("nodeName") and name in wanted:
                assert names.ALLOCATION in each["metadata"]["annotations"], "bound, not decided"
                found[name] = each
            if isinstance(event, Changed) and event.kind == DELETED:
                found.pop(name, None)
        if set(found) == wanted:
            break
    return found


def granted(item: Json) -> dict[str, decision.Grant]:
    """What a pod's only container has of which GPU, after the checks that a node makes."""
    decided = decision.read(item["metadata"]["annotations"][names.ALLOCATION])
    assert decided.pod == item["metadata"]["uid"]
    assert decided.node == item["spec"]["nodeName"]
    assert set(decided.containers) == {"main"}
    return dict(decided.containers["main"])


def test_fifty_pods_get_what_they_ask_for_and_no_gpu_gives_more_than_it_has(
    plane: ControlPlane,
) -> None:
    kinds = [kind for kind, count in ASKED.items() for _ in range(count)]
    asked = {f"p{number}": kind for number, kind in enumerate(kinds)}
    assert len(asked) == 50

    async def act() -> dict[str, Json]:
        async with connected(plane.cluster()) as client:
            for name, kind in asked.items():
                await client.post(pods_path(), limited(name, *kind))
            found = await asyncio.wait_for(scheduled(client, set(asked)), PATIENCE)
            for name in asked:
                await client.delete(f"{pods_path()}/{name}", {"gracePeriodSeconds": 0})
            return found

    found = asyncio.run(act())
    units: Counter[str] = Counter()
    facts = {name: gpus(name, V100, V100) for name in NAMES}
    for name, (size, count) in asked.items():
        item, grants = found[name], granted(found[name])
        assert set(grants) <= set(facts[item["spec"]["nodeName"]])
        assert len(grants) == count
        each = size // count
        assert {grant.mem for grant in grants.values()} == {each * V100 // UNITS}
        units.update(dict.fromkeys(grants, each))
    assert max(units.values()) <= UNITS
    total = sum(size for size, _ in asked.values())
    assert units.total() == total
    assert len(units) <= -(-total // UNITS) + 1  # binpack


def test_both_profiles_schedule_and_what_fits_nowhere_waits_with_a_reason(
    plane: ControlPlane,
) -> None:
    """K8S-9: the documents' scheduler is one of them."""

    async def act() -> tuple[Json, str]:
        async with connected(plane.cluster()) as client:
            await client.post(pods_path(), limited("large", UNITS + 1))
            await client.post(pods_path(), limited("other", 2, scheduler=names.SCHEDULERS[1]))
            found = await asyncio.wait_for(scheduled(client, {"other"}), PATIENCE)
            return found["other"], await asyncio.wait_for(_reason(client, "large"), PATIENCE)

    other, reason = asyncio.run(act())
    assert len(granted(other)) == 1
    expected = "no GPU has 16 GiB of aliyun.com/gpu-mem in all"
    assert reason == f"0/10 nodes are available: 10 {expected}."


async def _reason(client: Client, name: str) -> str:
    """Why a pod is not scheduled, as its condition says."""
    async for event in Watch(client, PODS.path(), dict):
        for each in event.items if isinstance(event, Listed) else [event.item]:
            if each["metadata"]["name"] == name:
                for condition in each["status"].get("conditions") or []:
                    if condition.get("reason") == "Unschedulable":
                        return str(condition["message"])
    raise AssertionError("the watch ended")


def test_the_chart_grants_the_extender_what_it_calls_and_no_more(cluster: Scheduled) -> None:
    absent = {"PodName": "p", "PodNamespace": "default", "PodUID": "u", "Node": NAMES[0]}
    assert "not found" in bind(cluster.extender, absent)  # it reads a pod that it does not know
    granted: set[Call] = set()
    objects = chart.rendered("1.20.2", cluster.plane.folder)
    for kind in ("Role", "ClusterRole"):
        role = chart.one(objects, kind, EXTENDER)
        for rule in role["rules"]:
            where = role["metadata"].get("namespace", "")
            granted |= {
                Call(verb, rule["apiGroups"][0], resource, where)
                for verb in rule["verbs"]
                for resource in rule["resources"]
            }
    called = {
        each._replace(namespace="") if each.namespace == "default" else each
        for each in cluster.plane.calls(EXTENDER)
    }
    assert called == granted


def bind(extender: str, asked: Json) -> str:
    """Ask the extender to bind as a scheduler does; what it says is wrong."""
    body = json.dumps(asked).encode()
    request = urllib.request.Request(f"{extender}/gpushare-scheduler/bind", body)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(json.load(answer)["Error"])
