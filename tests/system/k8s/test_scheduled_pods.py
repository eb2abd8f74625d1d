"""The real kube-scheduler with the extender: each decision is one that a node can follow.

COS-7, K8S-9.
"""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections import Counter
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from cgpu_k8s import names
from cgpu_k8s.apiserver.client import MERGE, Client, open_client
from cgpu_k8s.apiserver.errors import ForbiddenError
from cgpu_k8s.apiserver.resources import NODES, PODS, RESOURCE_POLICIES
from cgpu_k8s.apiserver.watch import DELETED, Changed, Listed, Watch
from cgpu_k8s.objects import policies
from cgpu_node import allocation_annotation
from lab.cluster import crowd
from lab.containers.enclosure import wait_until
from lab.kubernetes.control_plane import Call, ControlPlane, control_plane, controllers
from lab.kubernetes.manifests import V100, gpus, node
from lab.kubernetes.objects import pod, pod_path, pods_path
from lab.kubernetes.programs import Release
from lab.kubernetes.scheduler import EXTENDER, install, scheduling

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.system

Json = dict[str, Any]
NAMES = [f"gpu-{number}" for number in range(10)]
UNITS = 15  # GiB that a V100 counts
# How many pods ask for how many GiB, of how many GPUs: the largest first, which wastes least.
ASKED = {(15, 1): 1, (8, 2): 9, (5, 1): 10, (3, 1): 30}
QUOTAS = "/api/v1/namespaces/team/resourcequotas"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
PRIORITIES = {"low": 10, "middle": 50, "high": 100}
PATIENCE = 120.0  # seconds
A_WHILE = 3.0


class Scheduled(NamedTuple):
    """A control plane whose pods are scheduled, the extender's address, and as whom it asks."""

    plane: ControlPlane
    extender: str
    user: str

    def metrics(self) -> str:
        """What the extender counts."""
        with urllib.request.urlopen(f"{self.extender}/metrics", timeout=30) as answer:
            return str(answer.read().decode())

    def preempt_calls(self) -> int:
        """How often a scheduler has asked which pods would have to end."""
        counted = re.search(r'_count{verb="preempt"} (\S+)', self.metrics())
        return int(float(counted[1])) if counted else 0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, release: Release) -> Iterator[Scheduled]:
    with control_plane(tmp_path_factory.mktemp("plane"), release) as running:
        install(running)
        asyncio.run(_prepare(running))
        with scheduling(running) as replica:
            yield Scheduled(running, replica.address, replica.user)


@pytest.fixture
def plane(cluster: Scheduled) -> ControlPlane:
    return cluster.plane


@pytest.fixture(autouse=True)
def _no_pods(plane: ControlPlane) -> Iterator[None]:
    yield
    crowd.asked(plane, crowd.remove_pods)


async def _prepare(plane: ControlPlane) -> None:
    """Ten nodes with two GPUs each, and priorities that the API server soon knows."""
    async with open_client(plane.cluster()) as client:
        for name, value in PRIORITIES.items():
            about = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": value}
            await client.post(CLASSES, {**about, "metadata": {"name": name}})
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


def granted(item: Json) -> dict[str, allocation_annotation.Grant]:
    """What a pod's only container has of which GPU, after the checks that a node makes."""
    decided = allocation_annotation.parse_annotation(
        item["metadata"]["annotations"][names.ALLOCATION]
    )
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
        async with open_client(plane.cluster()) as client:
            for name, kind in asked.items():
                await client.post(pods_path(), limited(name, *kind))
            return await asyncio.wait_for(scheduled(client, set(asked)), PATIENCE)

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


def test_cos_7_a_group_of_shares_waits_for_its_last_pod_and_is_then_bound_whole(
    plane: ControlPlane,
) -> None:
    """COS-7: the others' schedulers are woken."""
    group = {"gpu-topology": "job", "gpu-topology-replica": "4"}

    async def act() -> dict[str, Json]:
        async with open_client(plane.cluster()) as client:
            for number in range(4):
                bound = await client.list(pods_path(), {"fieldSelector": "spec.nodeName!="})
                assert bound.items == []
                made = limited(f"member-{number}", UNITS)
                made["metadata"]["labels"] |= group
                await client.post(pods_path(), made)
                if number < 3:
                    reason = await asyncio.wait_for(_reason(client, f"member-{number}"), PATIENCE)
                    assert "group job" in reason
            wanted = {f"member-{number}" for number in range(4)}
            return await asyncio.wait_for(scheduled(client, wanted), PATIENCE)

    found = asyncio.run(act())
    assert len({uuid for each in found.values() for uuid in granted(each)}) == 4
    assert len({each["spec"]["nodeName"] for each in found.values()}) == 2  # the fewest nodes


def test_both_profiles_schedule_and_what_fits_nowhere_waits_with_a_reason(
    plane: ControlPlane,
) -> None:
    """K8S-9: the documents' scheduler is one of them."""

    async def act() -> tuple[Json, str]:
        async with open_client(plane.cluster()) as client:
            await client.post(pods_path(), limited("large", UNITS + 1))
            await client.post(pods_path(), limited("other", 2, scheduler=names.SCHEDULERS[1]))
            found = await asyncio.wait_for(scheduled(client, {"other"}), PATIENCE)
            return found["other"], await asyncio.wait_for(_reason(client, "large"), PATIENCE)

    other, reason = asyncio.run(act())
    assert len(granted(other)) == 1
    expected = "no GPU has 16 GiB of aliyun.com/gpu-mem in all"
    # Newer schedulers go on with what they found of preemption.
    assert reason.startswith(f"0/10 nodes are available: 10 {expected}.")


async def _reason(client: Client, name: str) -> str:
    """Why a pod is not scheduled, as its condition says."""
    async for event in Watch(client, PODS.path(), dict):
        for each in event.items if isinstance(event, Listed) else [event.item]:
            if each["metadata"]["name"] == name:
                for condition in each["status"].get("conditions") or []:
                    if condition.get("reason") == "Unschedulable":
                        return str(condition["message"])
    raise AssertionError("the watch ended")


def on(node: str, item: Json, priority: str) -> Json:
    """The pod as it fits one node alone, with a priority, and ended at once."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    more = {"priorityClassName": priority, "terminationGracePeriodSeconds": 0}
    return {**item, "spec": {**item["spec"], **more, "affinity": affinity}}


def test_pods_end_for_one_of_higher_priority_that_gets_their_gpu_and_for_no_other(
    cluster: Scheduled,
) -> None:
    """Nobody ends in vain where the scheduler asks extenders about it, which is since 1.20.10."""
    # The first two leave 1 GiB of one GPU, and the others 1 GiB of the other one.
    begin = (("first", 5, "high"), ("a", 9, "middle"),
             ("second", 5, "high"), ("b", 5, "low"), ("c", 4, "low"))  # fmt: skip
    asks = cluster.plane.release.is_since(21)
    # No GPU has 16 GiB in all. Without a, b and c, the node would have 20, but each GPU only 10.
    vain = {"large": UNITS + 1, "split": 12} if asks else {}

    async def add(client: Client, name: str, units: int, priority: str) -> None:
        await client.post(pods_path(), on(NAMES[0], limited(name, units), priority))

    async def living(client: Client) -> dict[str, Json]:
        """The pods that nobody ends."""
        return {
            each["metadata"]["name"]: each
            for each in (await client.list(pods_path())).items
            if "deletionTimestamp" not in each["metadata"]
        }

    async def act() -> tuple[dict[str, Json], dict[str, Json]]:
        async with open_client(cluster.plane.cluster()) as client:
            for each in begin:
                await add(client, *each)
                await asyncio.wait_for(scheduled(client, {each[0]}), PATIENCE)
            before, calls = await living(client), cluster.preempt_calls()
            for name, units in vain.items():
                await add(client, name, units, "high")
                await asyncio.wait_for(_reason(client, name), PATIENCE)
            # A scheduler ends pods behind its cycle's back.
            await asyncio.sleep(A_WHILE if vain else 0)
            now = await living(client)
            waiting = [now.pop(name) for name in vain]
            assert identities(now) == identities(before)
            assert not any("nominatedNodeName" in each["status"] for each in waiting)
            assert cluster.preempt_calls() >= calls + len(vain)
            for name in vain:
                await client.delete(pod_path(name))
            calls = cluster.preempt_calls()
            await add(client, "urgent", 9, "high")
            await asyncio.wait_for(scheduled(client, {"urgent"}), PATIENCE)
            assert (cluster.preempt_calls() > calls) == asks
            return before, await living(client)

    before, found = asyncio.run(act())
    urgent, ended = found.pop("urgent"), [before.pop(name) for name in ("b", "c")]
    assert identities(found) == identities(before)  # nor does a end, which is not needed
    [(gpu, grant)] = granted(urgent).items()
    assert [granted(each).keys() for each in ended] == [{gpu}, {gpu}]
    assert grant.mem == 9 * V100 // UNITS
    assert urgent["spec"]["nodeName"] == NAMES[0]


def identities(pods: dict[str, Json]) -> dict[str, str]:
    """The UID of each pod."""
    return {name: each["metadata"]["uid"] for name, each in pods.items()}


def test_a_quota_of_a_namespace_counts_what_its_pods_ask_for(plane: ControlPlane) -> None:
    """With the real controller; for 1.20.2, which has none here, the test writes what it would."""
    hard = {f"requests.{names.MEMORY}": "6", f"requests.{names.CORES}": "50"}
    asks, none = {names.MEMORY: "4", names.CORES: "30"}, dict.fromkeys(hard, "0")
    real = plane.release.has_controllers

    def create(path: str, item: Json) -> None:
        crowd.asked(plane, lambda client: client.post(path, {"apiVersion": "v1", **item}))

    def make(name: str) -> None:
        create(pods_path("team"), pod(name, asks, schedulerName=names.SCHEDULERS[0]))

    def remove(name: str) -> None:
        path, at_once = pod_path(name, namespace="team"), {"gracePeriodSeconds": 0}
        crowd.asked(plane, lambda client: client.delete(path, at_once))

    def used() -> Json | None:
        found: Json | None = plane.read(f"{QUOTAS}/gpus")["status"].get("used")
        return found

    def is_counted() -> bool:
        make("first")
        if used() == {f"requests.{name}": amount for name, amount in asks.items()}:
            return True
        remove("first")
        return False

    with controllers(plane, "resourcequota") if real else nullcontext():
        create("/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": "team"}})
        about = {"kind": "ResourceQuota", "metadata": {"name": "gpus"}}
        create(QUOTAS, {**about, "spec": {"hard": hard}})
        if not real:
            status = {"status": {"hard": hard, "used": none}}
            crowd.asked(plane, lambda client: client.patch(f"{QUOTAS}/gpus/status", status, MERGE))
        wait_until(lambda: used() == none, "the controller has counted that there is no pod")
        wait_until(is_counted, "the API server has heard of that, and counts pods")
        with pytest.raises(ForbiddenError) as refused:
            make("second")
        if real:
            remove("first")
            wait_until(lambda: used() == none, "the controller has counted that it is gone")
            make("second")
    sentence = str(refused.value)
    assert "exceeded quota: gpus" in sentence
    for name, had, most in ((names.MEMORY, 4, 6), (names.CORES, 30, 50)):
        assert f"requests.{name}={had}" in sentence
        assert f"requests.{name}={most}" in sentence


def test_the_chart_grants_the_extender_what_it_calls_and_no_more(cluster: Scheduled) -> None:
    """COS-2, COS-9: also for a policy whose unit gives labels, and of which one has no node."""
    absent = {"PodName": "p", "PodNamespace": "default", "PodUID": "u", "Node": NAMES[0]}
    assert "not found" in bind(cluster.extender, absent)  # it reads a pod that it does not know
    units = [{"podLabels": {"unit": "first"}}, {"nodeSelector": {"no": "node"}}]
    rule = {"kind": "ResourcePolicy", "metadata": {"name": "rule"}, "spec": {"units": units}}
    rules = RESOURCE_POLICIES.path(namespace="default")

    async def follow_a_policy(client: Client) -> dict[str, Json]:
        await client.post(rules, {"apiVersion": policies.GROUP, **rule})
        await client.post(pods_path("default"), limited("led", 1))
        return await scheduled(client, {"led"})

    def message() -> str:
        path = RESOURCE_POLICIES.path("rule", namespace="default")
        found: Json = crowd.asked(cluster.plane, lambda client: client.get(path))
        return str(found.get("status", {}).get("message", ""))

    led = crowd.asked(cluster.plane, follow_a_policy)["led"]
    assert led["metadata"]["labels"]["unit"] == "first"
    wait_until(lambda: "no node matches" in message(), "the policy's status says it", PATIENCE)
    granted_calls = cluster.plane.granted(EXTENDER)
    wait_until(lambda: called(cluster) >= granted_calls, "it has called all of it", PATIENCE)
    assert called(cluster) == granted_calls


def called(cluster: Scheduled) -> set[Call]:
    """What the extender has called."""
    return {
        each._replace(namespace="") if each.namespace == "default" else each
        for each in cluster.plane.calls(cluster.user)
    }


def bind(extender: str, asked: Json) -> str:
    """Ask the extender to bind as a scheduler does; what it says is wrong."""
    body = json.dumps(asked).encode()
    request = urllib.request.Request(f"{extender}/gpushare-scheduler/bind", body)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(json.load(answer)["Error"])
