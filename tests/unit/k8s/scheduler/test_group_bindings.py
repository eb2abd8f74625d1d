"""The bindings of a group's pods wait for each other, and are sent together or not at all. COS-7.

A scheduler binds a pod as soon as the pod alone may be on its node: it knows no groups.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import pytest

from cgpu_k8s.objects.nodes import read_node
from cgpu_k8s.objects.pods import read_pod
from cgpu_k8s.scheduler import reservations
from cgpu_k8s.scheduler.policies.policy_informer import read_known_policy
from lab.worlds.extender import World, node, policy
from lab.worlds.extender import pod as sharing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from lab.worlds.extender import Json

pytestmark = pytest.mark.unit

NODES = ("a", "b")
SHORT = 0.3  # seconds for which bindings wait, in place of WAIT
SENTENCE = (
    "group job: 2 of its 4 pods did not come in time to the nodes that are reserved for them: all"
    " or none are placed"
)
AT_ONCE = 5.0  # seconds; far less than WAIT


def pod(name: str, group: str = "job", size: int = 4, gpus: int = 1) -> Json:
    """A pod with a whole GPU."""
    made = sharing(name, 0)
    made["spec"]["containers"][0]["resources"] = {"limits": {"aliyun.com/gpu": str(gpus)}}
    labels = {"gpu-topology": group, "gpu-topology-replica": str(size)} if group else {}
    made["metadata"] |= {"labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return made


class Cluster(NamedTuple):
    """A group of four pods that has its room on two nodes of four GPUs."""

    world: World
    pods: Sequence[Json]

    def start(self, *numbers: int) -> list[asyncio.Task[str]]:
        """Begin to bind some of the pods, each to the node that is reserved for it."""
        found = []
        for number in numbers:
            uid = f"uid-p{number}"
            to = self.world.cache.assumed[uid].allocation.node
            found.append(asyncio.ensure_future(self.world.bind(self.pods[number], to)))
        return found

    async def answers(self, *numbers: int, then: Callable[[], object] = lambda: None) -> list[str]:
        """What becomes of the bindings of some pods, after something has happened."""
        tasks = self.start(*numbers)
        await asyncio.sleep(0.1)
        then()
        return await asyncio.wait_for(asyncio.gather(*tasks), AT_ONCE)

    async def ask(self) -> None:
        """Let all pods ask that are not bound."""
        for each in self.pods:
            if "nodeName" not in each["spec"]:
                await self.world.filter(each, NODES)
        await asyncio.sleep(0.05)

    def bound(self) -> list[str]:
        return [each["metadata"]["name"] for each in self.world.server.bindings]


def run(work: Callable[[Cluster], Awaitable[None]], *more: Json) -> None:
    pods = [pod(f"p{n}") for n in range(4)]
    world = World(*pods, *more)
    world.cache.replace_nodes(read_node(node(name, "topology", 4)) for name in NODES)
    world.cache.replace_pods(map(read_pod, [*pods, *more]))

    async def act() -> None:
        cluster = Cluster(world, pods)
        await cluster.ask()
        await work(cluster)

    world.run(act)


def test_no_binding_is_sent_before_all_pods_of_the_group_are_to_be_bound() -> None:
    async def work(cluster: Cluster) -> None:
        first = cluster.start(0, 1, 2, 2)
        await asyncio.sleep(0.1)
        assert cluster.bound() == []
        assert await asyncio.gather(*first, *cluster.start(3)) == [""] * 5
        assert sorted({*cluster.bound()}) == ["p0", "p1", "p2", "p3"]

    run(work)


def test_a_group_of_which_pods_do_not_come_in_time_holds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with required anti-affinity of four pods on two nodes."""
    monkeypatch.setattr(reservations, "WAIT", SHORT)
    single = pod("single", group="", gpus=4)

    async def work(cluster: Cluster) -> None:
        refused = await cluster.world.filter(single, NODES)
        assert set(refused["FailedNodes"]) | set(refused["NodeNames"]) == set(NODES)
        assert await cluster.answers(0, 1) == [SENTENCE] * 2
        assert cluster.bound() == []
        assert not {f"uid-p{n}" for n in range(4)} & cluster.world.cache.assumed.keys()
        answer = await cluster.world.filter(cluster.pods[0], NODES)
        assert "1 of them ask for a node" in answer["FailedNodes"]["a"]
        await cluster.ask()
        assert await cluster.answers(0, 1, 2, 3) == [""] * 4

    run(work, single)


def test_a_pod_that_is_deleted_or_moves_ends_the_wait_of_all_at_once() -> None:
    async def work(cluster: Cluster) -> None:
        cache, gone = cluster.world.cache, "uid-p3"
        there = cache.assumed["uid-p0"].allocation.node
        found = await cluster.answers(0, 1, then=lambda: cache.remove_pod(gone))
        assert found == ["what was reserved for the pod's group is free again"] * 2
        cache.update_pod(read_pod(cluster.pods[3]))
        await cluster.ask()
        found = await cluster.answers(0, 1, 2, then=lambda: cache.remove_pod("uid-p1"))
        assert found == ["group job: a pod that was to be bound with it is gone"] * 3
        cache.update_pod(read_pod(cluster.pods[1]))
        await cluster.ask()
        there = cache.assumed["uid-p0"].allocation.node
        elsewhere = [name for name in NODES if name != there]
        tasks = cluster.start(1, 2)
        await asyncio.sleep(0.1)
        await cluster.world.filter(cluster.pods[0], (*elsewhere,))
        found = await asyncio.wait_for(asyncio.gather(*tasks), AT_ONCE)
        assert found == ["what was reserved for the pod's group is free again"] * 2
        assert cluster.bound() == []

    run(work)


def test_who_does_not_lead_any_more_ends_the_wait_and_keeps_what_is_reserved() -> None:
    async def work(cluster: Cluster) -> None:
        world, lost = cluster.world, "one does not lead, two does"
        found = await cluster.answers(0, 1, then=lambda: setattr(world, "missing", lost))
        assert found == [lost] * 2
        world.missing = ""
        assert cluster.bound() == []
        assert await cluster.answers(0, 1, 2, 3) == [""] * 4

    run(work)


def test_of_a_group_of_which_some_are_bound_only_the_rest_has_to_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reservations, "WAIT", SHORT)

    async def work(cluster: Cluster) -> None:
        assert await cluster.answers(0, 1, 2, 3) == [""] * 4
        for each in cluster.pods:
            cluster.world.cache.update_pod(read_pod(each))
        for each in cluster.pods[2:]:
            cluster.world.cache.remove_pod(each["metadata"]["uid"])
            del each["spec"]["nodeName"], each["metadata"]["annotations"]
            cluster.world.cache.update_pod(read_pod(each))
        await cluster.ask()
        assert "1 of its 4 pods did not come in time" in (await cluster.answers(2))[0]
        await cluster.ask()
        assert await cluster.answers(2, 3) == [""] * 2

    run(work)


def test_a_pod_that_another_scheduler_binds_waits_no_longer() -> None:
    async def work(cluster: Cluster) -> None:
        given, to = cluster.pods[0], cluster.world.cache.assumed["uid-p0"].allocation.node
        found: Json = {**given, "spec": {**given["spec"], "nodeName": to}}

        def bind_elsewhere() -> None:
            cluster.world.cache.update_pod(read_pod(found))
            cluster.world.cache.remove_pod("uid-p0")

        [answer] = await cluster.answers(0, then=bind_elsewhere)
        assert "no room for it" in answer
        assert cluster.bound() == []

    run(work)


def test_a_pod_that_its_policy_no_longer_allows_does_not_count_as_come() -> None:
    async def work(cluster: Cluster) -> None:
        rule = policy({"nodeSelector": {"pool": "none"}}, strategy="required")
        policies = cluster.world.cache.policies
        policies.update_policy(read_known_policy(rule))
        policies.take_namespace("ns", [read_pod(each) for each in cluster.pods])
        assert "the node is of no unit" in (await cluster.answers(0))[0]
        assert not cluster.world.cache.groups._groups["ns", "job"].rendezvous.came  # noqa: SLF001

    run(work)
