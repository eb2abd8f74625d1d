"""Groups of pods through the extender: all get their room or none, whatever fails. COS-7, COS-8."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from cgpu_k8s.apiserver.errors import ApiError
from cgpu_k8s.names import ALLOCATION, GPU_GROUP, RESERVATION
from cgpu_k8s.objects.nodes import read_node
from cgpu_k8s.objects.pods import read_pod
from cgpu_k8s.scheduler.groups import HOLD_SECONDS
from lab.worlds.extender import node
from lab.worlds.grouped import (
    NODES,
    asked,
    bound,
    cluster,
    pod,
    reservations,
    restarted,
    sent,
    terminate,
)

pytestmark = pytest.mark.unit


def test_no_pod_of_a_group_has_anything_before_all_have_asked_and_then_all_are_bound() -> None:
    pods = [pod(f"p{n}") for n in range(3)]
    world = cluster(*pods)

    async def work() -> None:
        for number, each in enumerate(pods[:2], 1):
            assert await asked(world, each) == (
                f"group job: 3 of its 3 pods are there, {number} of them ask for a node: all or"
                " none are placed"
            )
            assert world.taken() == {}
        assert await asked(world, pods[2]) in NODES
        await asyncio.sleep(0.05)
        assert sorted(reservations(world)) == [*NODES]  # which wakes their schedulers
        assert sorted(await bound(world, *pods)) == [*NODES]

    world.run(work)
    for each in pods:
        notes = each["metadata"]["annotations"]
        assert notes[GPU_GROUP] == "job"
        assert len(json.loads(notes[ALLOCATION])["containers"]["main"]) == 2


def test_a_group_of_shares_is_whole_as_well() -> None:
    pods = [pod(f"p{n}", mem=15, size=7) for n in range(7)]
    world = cluster(*pods, mode="cgpu")

    async def work() -> None:
        for each in pods:
            assert "group job" in await asked(world, each)
        assert world.taken() == {}
        world.cache.update_node(read_node(node("c", "cgpu", 3)))
        await bound(world, *pods)

    world.run(work)
    assert sorted(len(each) for each in world.taken().values()) == [2, 2, 3]


def test_nothing_is_bound_before_what_the_others_have_is_written() -> None:
    pods = [pod(f"p{n}") for n in range(3)]
    world = cluster(*pods)
    world.server.patch_faults = [ApiError("away", status=500)] * 6

    async def work() -> None:
        to = [await asked(world, each) for each in pods][2]
        await asyncio.sleep(0.05)
        assert "what its group has cannot be written: away" in await world.bind(pods[2], to)
        assert world.server.bindings == []
        world.server.patch_faults.clear()
        await bound(world, *pods)
        assert len(reservations(world)) == 3

    world.run(work)


@pytest.mark.parametrize("binds", [0, 1, 2])
def test_a_leader_that_comes_between_the_bindings_binds_the_rest(binds: int) -> None:
    """Nobody else gets their room meanwhile."""
    pods = [pod(f"p{n}") for n in range(3)]
    single = pod("single0", group="")
    first = cluster(*pods, single)

    async def begin() -> None:
        for each in pods:
            await asked(first, each)
        await asyncio.sleep(0.05)
        for each in pods[:binds]:
            sent(first, each)

    first.run(begin)
    second = restarted(first)

    async def go_on() -> None:
        second.server.calls.clear()
        await second.extender.binder.resolve_unconfirmed(15.0)
        woken = [call for call in second.server.calls if "PATCH" in call]
        assert len(woken) == 3 - binds
        assert "no GPU is free as a whole" in await asked(second, single)
        nodes = await bound(second, *pods[binds:])
        assert len(set(nodes)) == 3 - binds

    second.run(go_on)
    assert all(each["spec"]["nodeName"] for each in pods)


def test_what_nobody_uses_is_free_after_its_time_for_the_next_leader_too() -> None:
    pods = [pod(f"p{n}") for n in range(3)]
    world = cluster(*pods)

    async def work() -> None:
        for each in pods:
            await asked(world, each)
        await asyncio.sleep(0.05)

    world.run(work)
    assert len(world.taken()) == 3
    late = time.time() + HOLD_SECONDS + 2
    assert restarted(world, wall=late).taken() == {}
    assert len(restarted(world).taken()) == 3
    world.cache.groups.expire(time.monotonic() + HOLD_SECONDS + 2)
    assert world.taken() == {}


def test_what_is_left_of_a_group_that_is_not_whole_holds_nothing() -> None:
    pods = [pod(f"p{n}", size=2) for n in range(2)]
    note = {"v": 1, "node": "a", "gpus": ["GPU-a-0", "GPU-a-1"], "at": 1000}
    pods[0]["metadata"]["annotations"] = {RESERVATION: json.dumps(note)}
    world = cluster(*pods)
    world.cache.restore_reservations(50.0, 1010.0)
    assert world.taken() == {}


@pytest.mark.parametrize("labels", [{}, {"gpu-topology": "job"}])
def test_a_pod_that_leaves_its_group_is_written_nothing(labels: dict[str, str]) -> None:
    """By its event, or before that by what its scheduler asks."""
    pods = [pod(f"p{n}") for n in range(3)]
    world = cluster(*pods)
    world.server.patch_faults = [ApiError("away", status=500)] * 6

    async def work() -> None:
        for each in pods:
            await asked(world, each)
        await asyncio.sleep(0.05)
        world.server.patch_faults.clear()
        pods[0]["metadata"]["labels"] = labels
        await world.filter(pods[0], NODES)
        await world.extender.binder.resolve_unconfirmed(15.0)
        world.cache.update_pod(read_pod(pods[0]))
        assert "2 of its 3 pods are there" in await asked(world, pods[1])
        await world.extender.binder.resolve_unconfirmed(15.0)
        assert world.cache.groups.unwritten == set()

    world.run(work)


def test_who_does_not_lead_writes_nothing() -> None:
    pods = [pod("p0", size=1)]
    world = cluster(*pods)
    world.missing = "nodes and pods are to be listed again"

    async def work() -> None:
        world.cache.groups.find_spot("uid-p0", ["a"], 0.0)
        await world.extender.binder.resolve_unconfirmed(15.0)
        assert world.server.calls == []
        world.missing = ""
        await world.extender.binder.resolve_unconfirmed(15.0)
        assert world.server.calls == ["PATCH /api/v1/namespaces/ns/pods/p0"]

    world.run(work)


def test_of_two_reservations_of_one_gpu_the_later_counts() -> None:
    pods = [pod(f"p{n}", size=1, group=f"job{n}") for n in range(2)]
    for at, each in enumerate(pods):
        note = {"v": 1, "node": "a", "gpus": ["GPU-a-0", "GPU-a-1"], "at": 1000 + at}
        each["metadata"]["annotations"] = {RESERVATION: json.dumps(note)}
    world = cluster(*pods)
    world.cache.restore_reservations(50.0, 1010.0)
    assert world.taken() == {"a": {"uid-p1"}}


@pytest.mark.parametrize(
    "text",
    ["", "x", "[]", "{}", '{"v":2}', '{"v":1,"node":"gone","gpus":["GPU-a-0"],"at":1000}',
     '{"v":1,"node":"a","gpus":["GPU-b-0"],"at":1000}', '{"v":1,"node":"a","gpus":3,"at":1000}',
     '{"v":1,"node":"a","gpus":["GPU-a-0","GPU-a-1"],"at":"x"}', "[" * 9999,
     '{"v":1,"node":"a","gpus":["GPU-a-0","GPU-a-1"],"at":Infinity}',
     '{"v":1,"node":"a","gpus":["GPU-a-0","GPU-a-1"],"at":1' + "0" * 400 + "}",
     '{"v":1,"node":"a","gpus":["GPU-a-0"],"at":1000}',
     '{"v":1,"node":"a","gpus":["GPU-a-0","GPU-a-0"],"at":1000}'],
)  # fmt: skip
def test_a_reservation_that_is_none_counts_nothing(text: str) -> None:
    given = pod("p0", size=1)
    given["metadata"]["annotations"] = {RESERVATION: text}
    world = cluster(given)
    world.cache.restore_reservations(50.0, 1010.0)
    assert world.taken() == {}


def test_a_pod_that_its_scheduler_knows_before_us_has_asked_once_we_know_it() -> None:
    pods = [pod(f"p{n}") for n in range(3)]
    world = cluster(*pods[:2])
    world.server.pods["p2"] = pods[2]

    async def work() -> None:
        assert await asked(world, pods[2]) == "the pod is not known yet"
        for each in pods[:2]:
            await asked(world, each)
        assert world.taken() == {}
        world.cache.update_pod(read_pod(pods[2]))
        assert len(world.taken()) == 3
        await bound(world, *pods)

    world.run(work)


def test_a_node_that_is_lost_under_half_a_group_is_replaced_for_the_rest() -> None:
    pods = [pod(f"p{n}", gpus=1, size=4) for n in range(4)]
    world = cluster(*pods)

    async def work() -> None:
        for each in pods:
            await asked(world, each)
        first = sent(world, pods[0])
        lost = next(each for each in world.taken() if each != first)
        left = tuple(name for name in NODES if name != lost)
        world.cache.remove_node(lost)
        answers = [await world.filter(each, left) for each in pods[1:] * 2][3:]
        nodes = [name for each in answers for name in each["NodeNames"]]
        assert await asyncio.gather(*map(world.bind, pods[1:], nodes)) == [""] * 3

    world.run(work)
    assert all(each["spec"]["nodeName"] for each in pods)


def test_no_pod_is_evicted_for_one_of_a_group() -> None:
    given, single = pod("p0", size=1), pod("single0", group="")
    world = cluster(given, single)

    async def work() -> None:
        for each, expected in ((given, {}), (single, {"a"})):
            victims = {"a": {"Pods": [{"UID": "x"}], "NumPDBViolations": 0}}
            call: Any = {"Pod": each, "NodeNameToMetaVictims": victims}
            status, answer = await world.post("preempt", call)
            assert status == 200
            assert set(answer["NodeNameToMetaVictims"]) == set(expected)

    world.run(work)


def test_a_pod_whose_group_has_no_room_for_it_any_more_is_not_bound() -> None:
    given = pod("p0", size=1)
    world = cluster(given)

    async def work() -> None:
        to = await asked(world, given)
        other = next(name for name in NODES if name != to)
        assert "no room for it on" in await world.bind(given, other)
        assert await world.bind(given, to) == ""

    world.run(work)


def test_the_pods_of_a_group_that_is_deleted_do_not_count_in_the_one_that_replaces_it() -> None:
    """They keep their GPUs until they have ended."""
    old, new = ([pod(f"{kind}{n}", gpus=1) for n in range(3)] for kind in ("old", "new"))
    world = cluster(*old)

    async def work() -> None:
        for each in old:
            await asked(world, each)
        await bound(world, *old)
        terminate(world, *old)
        for number, each in enumerate(new, 1):
            world.server.pods[each["metadata"]["name"]] = each
            world.cache.update_pod(read_pod(each))
            answer = await asked(world, each)
            if number < 3:
                assert f"{number} of its 3 pods are there, {number} of them ask" in answer
        await bound(world, *new)

    world.run(work)
    assert sum(map(len, world.taken().values())) == 6


def test_a_pod_that_waits_for_its_finalizers_has_not_asked_for_its_group() -> None:
    pods = [pod(f"p{n}") for n in range(3)]
    world = cluster(*pods)

    async def work() -> None:
        for each in pods[:2]:
            await asked(world, each)
        terminate(world, pods[0])
        assert "2 of its 3 pods are there, 2 of them ask" in await asked(world, pods[2])

    world.run(work)
    assert world.taken() == {}
    note = {"v": 1, "node": "a", "gpus": ["GPU-a-0", "GPU-a-1"], "at": 1000}
    pods[0]["metadata"]["annotations"] = {RESERVATION: json.dumps(note)}
    assert restarted(world, wall=1010.0).taken() == {}
