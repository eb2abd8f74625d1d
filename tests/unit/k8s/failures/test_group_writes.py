"""Reservations of groups that cannot be written to their pods. COS-7."""

from __future__ import annotations

import asyncio
import time

import pytest

from cgpu_k8s.apiserver.errors import ApiError, ForbiddenError, InvalidError
from cgpu_k8s.scheduler.gangs import Spot
from cgpu_k8s.scheduler.groups import HOLD_SECONDS
from lab.cluster.gpu_nodes import Nodes, group, known
from lab.worlds.grouped import (
    NODES,
    asked,
    bound,
    cluster,
    pod,
)

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("kind", [InvalidError, ForbiddenError])
def test_a_pod_that_cannot_be_written_costs_its_group_its_room_and_stops_no_other_group(
    kind: type[ApiError],
) -> None:
    bad = [pod(f"bad{n}", gpus=1, group="bad", size=2) for n in range(2)]
    good = [pod(f"p{n}", size=2) for n in range(2)]
    world = cluster(*bad, *good)
    world.server.unpatchable["bad0"] = kind("Too long", status=422)

    async def work() -> None:
        for each in bad:
            await asked(world, each)
        await asyncio.sleep(0.05)
        assert world.taken() == {}
        why = "cgpu/reservation cannot be written: Too long"
        assert await asked(world, bad[0]) == why
        assert (await asked(world, bad[1])).endswith(
            f"1 of them ask for a node: all or none are placed; {why}"
        )
        for each in good:
            await asked(world, each)
        await bound(world, *good)
        assert len(world.taken()) == 2

    world.run(work)


def test_a_later_pod_that_cannot_be_written_takes_nothing_from_a_group_that_is_there() -> None:
    pods = [pod(f"p{n}", size=2) for n in range(3)]
    world = cluster(*pods)
    groups = world.cache.groups

    async def work() -> None:
        for each in pods[:2]:
            await asked(world, each)
        await bound(world, *pods[:2])
        world.server.unpatchable["p2"] = InvalidError("Too long", status=422)
        assert await asked(world, pods[2]) in NODES
        await asyncio.sleep(0.05)
        assert "cannot be written: Too long" in await asked(world, pods[2])
        assert len(world.taken()) == 2
        late = time.monotonic() + HOLD_SECONDS
        assert isinstance(groups.find_spot("uid-p2", NODES, late), Spot)  # it is tried again

    world.run(work)


def test_a_failed_write_stops_no_other_one_and_no_other_group() -> None:
    away = [pod(f"away{n:02}", gpus=0, mem=1, group="away", size=17) for n in range(17)]
    good = pod("p0", mem=1, group="good", size=1)
    world = cluster(*away, good, mode="cgpu")
    refusal = ApiError("away", status=500)
    world.server.unpatchable = {each["metadata"]["name"]: refusal for each in away}

    async def work() -> None:
        for each in away:
            await asked(world, each)
        *_, to = nodes = [await asked(world, each) for each in away]
        await bound(world, good)
        assert "what its group has cannot be written: away" in await world.bind(away[-1], to)
        assert world.cache.groups.unwritten == {f"uid-away{n:02}" for n in range(17)}
        world.server.unpatchable.clear()
        assert await asyncio.gather(*map(world.bind, away, nodes)) == [""] * 17

    world.run(work)


def test_who_waits_for_a_pod_that_cannot_be_written_learns_it_at_once() -> None:
    """Of a group of which some pods are bound, and whose rest can only come together."""
    nodes = Nodes("a")
    pods = group("job", 4)
    known(nodes, *pods)
    for each in [*pods, *pods]:
        nodes.ask(each)
    for each in pods:
        nodes.come(each)
    assert len(nodes.bound) == 4
    anew = [each._replace(uid=f"{each.uid}-anew") for each in pods[2:]]
    for each in pods[2:]:
        nodes.delete(each)
    known(nodes, *anew)
    for each in [*anew, *anew]:
        nodes.ask(each)
    waiting = nodes.groups.arrive(anew[0].uid)
    nodes.groups.bar_pod(anew[1].uid, "cannot be written", 0.0)
    assert waiting.answer == (
        "group job: 4 of its 4 pods are there, 3 of them ask for a node: all or none are placed;"
        " cannot be written"
    )
    assert nodes.count() == 4


def test_no_binding_goes_on_for_one_that_has_lost_its_room() -> None:
    nodes = Nodes("a")
    pods = group("job", 2)
    known(nodes, *pods)
    for each in [*pods, *pods]:
        nodes.ask(each)
    waiting = nodes.groups.arrive(pods[0].uid)
    nodes.groups.expire(HOLD_SECONDS + 1)
    assert waiting.answer == "what was reserved for the pod's group is free again"
    assert nodes.count() == 0
