"""What the extender makes of a binding that is refused, repeated, or has no answer.

K8S-12.
"""

from __future__ import annotations

from typing import Any

import pytest

from cgpu_k8s.apiserver.errors import (
    ApiError,
    ConfigurationError,
    ForbiddenError,
    NoAnswerError,
    ServerError,
)
from cgpu_k8s.objects.nodes import read_node
from cgpu_k8s.objects.pods import read_pod
from cgpu_k8s.scheduler import binding, extender_api
from lab.worlds.extender import World, node, pod

pytestmark = pytest.mark.unit

LOST, BROKEN = NoAnswerError("no answer"), ServerError("failed", status=500)


@pytest.mark.parametrize("error", [LOST, BROKEN])
def test_a_binding_without_an_answer_that_was_carried_out_succeeds(error: ApiError) -> None:
    given = pod("p")
    world = World(given)
    world.server.faults = [("after", error)]

    async def work() -> None:
        await world.filter(given)
        assert await world.bind(given) == ""
        assert world.server.calls[-1] == "GET /api/v1/namespaces/ns/pods/p"
        assert world.taken() == {"a": {"uid-p"}}
        world.cache.replace_pods([])  # older than the pod
        assert world.taken() == {"a": {"uid-p"}}
        assert await world.metric('cgpu_extender_bindings_total{outcome="repeated"} 1.0')

    world.run(work)


@pytest.mark.parametrize("error", [LOST, BROKEN])
def test_a_binding_without_an_answer_keeps_its_part_and_is_repeated_as_it_was(
    error: ApiError,
) -> None:
    given = pod("p")
    world = World(given)
    world.server.faults = [("before", error), ("before", ForbiddenError("no", status=403))]

    async def work() -> None:
        await world.filter(given)
        assert "stays reserved" in await world.bind(given)
        assert await world.metric('cgpu_extender_bindings_total{outcome="unknown"} 1.0')
        answer = await world.filter(given)
        assert (answer["NodeNames"], list(answer["FailedNodes"])) == (["a"], ["b"])
        assert await world.bind(given) == "no"
        assert world.taken() == {"a": {"uid-p"}}
        world.server.land(world.server.bindings[0])  # late
        assert await world.bind(given) == ""
        assert len(world.server.bindings) == 3
        assert world.taken() == {"a": {"uid-p"}}

    world.run(work)
    texts = {each["metadata"]["annotations"]["cgpu/allocation"] for each in world.server.bindings}
    assert len(texts) == 1


@pytest.mark.parametrize(
    "error", [ForbiddenError("no", status=403), ConfigurationError("no token")]
)
def test_a_binding_that_is_surely_refused_makes_room_at_once(error: Any) -> None:
    given = pod("p")
    world = World(given)
    world.server.faults = [("before", error)]

    async def work() -> None:
        await world.filter(given)
        assert await world.bind(given) == str(error)
        assert world.taken() == {}
        assert world.log[-1] == (
            "not_bound",
            {"pod": "ns/p", "node": "a", "error": str(error)},
        )

    world.run(work)


def test_repeating_a_binding_is_success_and_sends_nothing_once_it_is_seen() -> None:
    given = pod("p")
    world = World(given)

    async def work() -> None:
        assert await world.bind(given) == ""  # without a filter before it: the pod is read
        assert await world.bind(given) == ""
        assert len(world.server.bindings) == 2
        world.cache.update_pod(read_pod(world.server.pods["p"]))
        assert world.cache.assumed == {}
        assert await world.bind(given) == ""
        assert len(world.server.bindings) == 2
        assert "bound to a already" in await world.bind(given, "b")

    world.run(work)


def test_a_pod_that_somebody_else_bound_or_replaced_gets_nothing() -> None:
    given, taken = pod("p"), pod("q")
    taken["spec"]["nodeName"] = "b"
    world = World(given, taken)

    async def work() -> None:
        await world.filter(pod("q"))
        assert "bound already to b, not by this decision" in await world.bind(pod("q"))
        await world.filter(pod("p", uid="before"))
        assert "no such pod" in await world.bind(pod("p", uid="before"))
        assert "the pod of this name is uid-p" in await world.bind(pod("p", uid="other"))
        assert "no such pod" in await world.bind(pod("gone"))
        assert world.taken() == {}

    world.run(work)


def test_a_node_that_is_full_by_now_is_refused_with_the_reason() -> None:
    world = World(pod("p", 15), pod("q", 15), pod("r", 15))

    async def work() -> None:
        for name in ("p", "q"):
            assert await world.bind(pod(name, 15)) == ""
        assert "no GPU has 15 GiB" in await world.bind(pod("r", 15))
        assert await world.bind(pod("r", 15), "elsewhere") == "the node is not known yet"
        assert await world.metric('cgpu_extender_bindings_total{outcome="refused"} 2.0')

    world.run(work)


def test_what_was_sent_and_is_never_seen_is_read_until_its_outcome_is_certain() -> None:
    lost, late, gone = pod("lost", 4), pod("late", 4), pod("gone", 4)
    world = World(lost, late, gone)
    world.server.faults = [("before", LOST), ("before", LOST), ("before", LOST)]
    now = 100.0

    async def work() -> None:
        binder = binding.Binder(world.cache, world.server, str, lambda: now)
        for each in (lost, late, gone):
            meta = each["metadata"]
            with pytest.raises(binding.BindError):
                await binder.bind(
                    extender_api.ExtenderBindingArgs("ns", meta["name"], meta["uid"], "a"), 0.0
                )
        world.server.land(world.server.bindings[1])
        world.server.pods["gone"] = pod("gone", uid="another")
        nonlocal_now(130.0)
        await binder.resolve_unconfirmed(15.0)
        assert set(world.cache.assumed) == {"uid-lost", "uid-late"}
        world.cache.update_pod(read_pod(world.server.pods["late"]))
        assert set(world.cache.assumed) == {"uid-lost"}
        assert set(world.cache.bound) == {"uid-late"}
        world.server.pods["lost"], kept = LOST, world.server.pods["lost"]  # type: ignore[assignment]
        nonlocal_now(200.0)
        await binder.resolve_unconfirmed(15.0)
        assert set(world.cache.assumed) == {"uid-lost"}
        world.server.pods["lost"] = kept
        await binder.resolve_unconfirmed(15.0)
        assert world.cache.assumed == {}

    def nonlocal_now(value: float) -> None:
        nonlocal now
        now = value

    world.run(work)


def test_what_was_read_as_bound_is_kept_until_the_watch_shows_it() -> None:
    world = World(pod("late"))
    world.server.faults = [("before", LOST)]
    now = 0.0

    async def work() -> None:
        nonlocal now
        binder = binding.Binder(world.cache, world.server, str, lambda: now)
        with pytest.raises(binding.BindError):
            await binder.bind(extender_api.ExtenderBindingArgs("ns", "late", "uid-late", "a"), 0.0)
        world.server.land(world.server.bindings[0])
        for _ in range(9):
            now += 16
            await binder.resolve_unconfirmed(15.0)
            assert world.taken() == {"a": {"uid-late"}}
        world.cache.replace_pods([])
        del world.server.pods["late"]
        now += 16
        await binder.resolve_unconfirmed(15.0)
        assert world.taken() == {}

    world.run(work)


def test_a_binding_to_a_node_that_is_gone_since_it_was_sent_is_refused() -> None:
    given = pod("p")
    world = World(given)
    world.server.faults = [("before", LOST)]

    async def work() -> None:
        assert "stays reserved" in await world.bind(given)
        world.cache.update_node(read_node(node("a", gpus=0)))
        assert await world.bind(given) == "node a has no GPU GPU-a-0 any more"
        world.cache.remove_node("a")
        assert await world.bind(given) == "the node is not known yet"
        assert world.cache.assumed["uid-p"].sent == 1  # 60 s count from what was sent

    world.run(work)
