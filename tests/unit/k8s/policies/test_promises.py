"""What is promised to a pod without GPUs counts until its binding is seen. COS-2, K8S-12."""

from __future__ import annotations

import pytest

from cgpu_k8s.objects.nodes import read_node
from cgpu_k8s.objects.pods import read_pod
from cgpu_k8s.scheduler.policies.policy_informer import read_known_policy
from lab.worlds.extender import Json, World, node, pod, policy

pytestmark = pytest.mark.unit

RULE = policy(
    {"nodeSelector": {"pool": "a"}, "max": 1}, {"nodeSelector": {"pool": "b"}}, strategy="required"
)


def make_world(*pods: Json) -> World:
    """Nodes a and b, each a pool, and pods that were seen."""
    world = World(*pods)
    world.cache.replace_nodes(read_node(node(name, pool=name)) for name in "ab")
    world.cache.policies.replace_policies([read_known_policy(RULE)])
    world.cache.replace_pods(map(read_pod, pods))
    return world


def sums(world: World) -> list[int]:
    [rule] = world.cache.policies.list_policies()
    return world.cache.policies.get_counts(rule).sum_units()


def test_it_has_no_part_of_a_node_and_ends_with_the_event_of_its_binding() -> None:
    given = pod("p", None, app="x")
    world = make_world(given)

    async def work() -> None:
        assert (await world.filter(given))["NodeNames"] == ["a"]
        assert (sums(world), world.taken()) == ([1, 0, 0], {})
        assert await world.bind(given, "a") == ""
        assert [*world.cache.assumed] == ["uid-p"]
        world.cache.update_pod(read_pod(given))
        assert (sums(world), world.cache.assumed) == ([1, 0, 0], {})

    world.run(work)


def test_one_that_was_sent_goes_nowhere_else_and_counts_where_it_is_found() -> None:
    given = pod("p", None, app="x")
    world = make_world(given)

    async def work() -> None:
        [to] = (await world.filter(given))["NodeNames"]
        world.cache.mark_sent(read_pod(given), world.cache.assumed["uid-p"].allocation, 0.0)
        answer = await world.filter(given)
        assert (answer["NodeNames"], [*answer["FailedNodes"]]) == ([to], ["b"])
        assert "binding to a was sent" in await world.bind(given, "b")
        given["spec"]["nodeName"] = "b"
        await world.extender.binder.resolve_unconfirmed(1.0)
        assert sums(world) == [0, 1, 0]

    world.run(work)


def test_one_that_may_not_be_sent_counts_nowhere() -> None:
    given = pod("p", None, app="x")
    world = make_world(given)

    def stop() -> None:
        world.missing = "it does not lead"

    async def work() -> None:
        await world.filter(given)
        world.server.stop = stop
        assert await world.bind(given, "a") == "it does not lead"
        assert await world.metric('cgpu_extender_bindings_total{outcome="refused"} 1.0')
        assert (sums(world), world.server.bindings) == ([0, 0, 0], [])

    world.run(work)


def test_without_a_policy_nothing_is_kept() -> None:
    given = pod("p", None)
    given["metadata"]["namespace"] = "other"
    world = make_world(given)

    async def work() -> None:
        assert (await world.filter(given))["NodeNames"] == ["a", "b"]
        assert await world.bind(given, "b") == ""
        assert world.cache.assumed == {}

    world.run(work)
