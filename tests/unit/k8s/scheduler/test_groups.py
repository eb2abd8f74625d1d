"""Groups of pods: whole or not at all, whatever the order in which their pods ask. COS-7."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpu_k8s.objects.groups import GroupError, GroupName, read_group
from cgpu_k8s.scheduler.gangs import Spot
from cgpu_k8s.scheduler.group import GroupPod
from cgpu_k8s.scheduler.groups import HOLD_SECONDS, Groups
from lab.cluster.gpu_nodes import Nodes, group, known
from lab.runs.profiled import count_calls

pytestmark = pytest.mark.unit


def test_no_pod_has_anything_until_the_last_has_asked_and_then_all_have() -> None:
    nodes, pods = Nodes("a"), group("job", 4)
    known(nodes, *pods)
    for pod in pods[:3]:
        assert isinstance(nodes.ask(pod), str)
        assert nodes.count() == 0
    assert isinstance(nodes.ask(pods[3]), Spot)
    assert nodes.count() == 8
    assert sorted(nodes.groups.unwritten) == [pod.uid for pod in pods]
    assert all(isinstance(nodes.ask(pod), Spot) for pod in pods)


def test_who_waits_is_shown_how_many_of_the_group_are_there() -> None:
    nodes, pods = Nodes("a"), group("job", 4)
    known(nodes, *pods[:2])
    assert nodes.ask(pods[0]) == (
        "group job: 2 of its 4 pods are there, 1 of them ask for a node: all or none are placed"
    )


def test_a_group_that_does_not_fit_holds_nothing_and_stops_no_later_one() -> None:
    nodes = Nodes("a")
    large, small = group("large", 5), group("small", 2, first=9)
    known(nodes, *large, *small)
    answers = [nodes.ask(pod) for pod in (*large, *small)]
    assert answers[4] == "group large: its 5 pods ask for 10 GPUs, and their nodes have 8 in all"
    assert isinstance(answers[6], Spot)
    assert nodes.count() == 4


def test_a_group_that_had_no_room_is_searched_for_again_once_something_has_changed() -> None:
    nodes, first = Nodes("a"), group("first", 4)
    others = [group(f"job{n}", 4, first=9) for n in range(20)]
    known(nodes, *first, *(pod for each in others for pod in each))
    for pod in (*first, *(pod for each in others for pod in each)):
        nodes.ask(pod)
    assert nodes.searched == 21
    for pod in others[-1]:
        assert "its nodes have room for 0" in str(nodes.ask(pod))
    assert nodes.searched == 21
    for pod in first:
        nodes.delete(pod)
    assert isinstance(nodes.ask(others[0][0]), Spot)
    assert isinstance(nodes.ask(others[1][0]), str)
    nodes.ask(others[1][0], nodes=["b"])
    assert nodes.searched == 24


def test_the_group_whose_first_pod_is_older_has_room_first() -> None:
    nodes = Nodes("a")
    older, newer = group("older", 3), group("newer", 3, first=5)
    filler = group("filler", 4, first=9)
    known(nodes, *filler)
    for pod in filler:
        nodes.ask(pod)
    known(nodes, *older, *newer)
    for pod in (*older, *newer):
        assert isinstance(nodes.ask(pod), str)
    for pod in filler:
        nodes.delete(pod)
    answer = nodes.ask(newer[0])
    assert answer == "group newer: its nodes have room for 1 of its 3 pods that wait"
    assert sorted(nodes.groups.unwritten) == [pod.uid for pod in older]


def test_an_older_group_is_first_wherever_both_could_be() -> None:
    nodes = Nodes("a", "b", "c")
    filler, older = group("filler", 12), group("older", 6, first=1)
    elsewhere, newer = group("elsewhere", 4, first=2), group("newer", 4, first=3)
    known(nodes, *filler, *older, *elsewhere, *newer)
    for pod in filler:
        nodes.ask(pod)
    for pods, where in ((older, "bc"), (elsewhere, "a"), (newer, "c")):
        for pod in pods:
            nodes.ask(pod, nodes=where)
    for pod in filler:
        nodes.delete(pod)
    before = nodes.searched
    assert "its nodes have room for 2 of its 4 pods" in str(nodes.ask(newer[0], nodes="c"))
    assert nodes.searched == before + 3  # for itself twice, and for the one that takes its node
    assert isinstance(nodes.ask(older[0], nodes="bc"), Spot)
    assert isinstance(nodes.ask(elsewhere[0], nodes="a"), Spot)


def test_a_group_waits_where_its_first_pod_does_also_if_that_comes_later() -> None:
    nodes = Nodes("a")
    pods = [*group("filler", 4), *group("one", 2, first=5), *group("two", 2, first=3)]
    known(nodes, *pods)
    for pod in pods:
        nodes.ask(pod)
    known(nodes, pods[4]._replace(uid="late", created="000001"))
    check_queues(nodes.groups)


def count_work(others: int) -> int:
    """The calls of the answer that gives a group its room, beside so many other groups."""
    nodes, job = Nodes("a"), group("job", 4)
    for number in range(others):
        bound, part, full = (group(f"{kind}{number}", 4) for kind in ("bound", "part", "full"))
        known(nodes, *(pod._replace(node="b") for pod in bound), *part, *full)
        nodes.ask(part[0])
        for pod in full:
            nodes.ask(pod, nodes=["full"])
    known(nodes, *job)
    for pod in job[:3]:
        nodes.ask(pod)
    return count_calls(lambda: nodes.ask(job[3]))


def test_an_answer_costs_the_same_whatever_other_groups_there_are() -> None:
    """10,008 pods in groups that are bound, have not all asked, or wait for other nodes."""
    assert count_work(834) == count_work(8)


def test_what_is_reserved_for_too_long_is_free_again() -> None:
    nodes, pods = Nodes("a"), group("job", 2)
    known(nodes, *pods)
    nodes.ask(pods[0])
    nodes.ask(pods[1])
    nodes.groups.expire(HOLD_SECONDS)
    assert nodes.count() == 4
    nodes.groups.expire(HOLD_SECONDS + 1)
    assert nodes.count() == 0
    assert isinstance(nodes.ask(pods[0]), str)
    assert isinstance(nodes.ask(pods[1]), Spot)


def test_beside_a_bound_pod_the_others_keep_their_room_while_they_ask_for_it() -> None:
    """As after an extender that was killed between the bindings."""
    nodes, pods = Nodes("a"), group("job", 3)
    known(nodes, *pods)
    spots = [nodes.ask(pod) for pod in (*pods, pods[0])][2:]
    assert isinstance(spots[1], Spot)
    nodes.bind(pods[0], spots[1])
    nodes.ask(pods[1], now=HOLD_SECONDS)
    nodes.groups.expire(HOLD_SECONDS + 1)
    assert nodes.count() == 4
    assert isinstance(nodes.ask(pods[1], now=HOLD_SECONDS + 1), Spot)
    nodes.groups.expire(2 * HOLD_SECONDS + 2)
    assert nodes.count() == 2
    answers = [nodes.ask(pod, now=2 * HOLD_SECONDS) for pod in pods[1:]]
    assert [type(each) for each in answers] == [str, Spot]
    check_queues(nodes.groups)


def test_a_new_leader_gives_the_rest_of_a_group_the_usual_time_to_ask() -> None:
    nodes, pods = Nodes("a"), group("job", 3)
    known(nodes, pods[0]._replace(node="a"), *pods[1:])
    spots = {pod.uid: (Spot("a", (2 * n, 2 * n + 1)), 0.0) for n, pod in enumerate(pods) if n}
    for uid, (spot, _) in spots.items():
        nodes.reserve(uid, spot)
    nodes.groups.restore(spots)
    for now in (5 * HOLD_SECONDS, 6 * HOLD_SECONDS):
        nodes.groups.expire(now)
        assert nodes.count() == 4
    nodes.groups.expire(6 * HOLD_SECONDS + 1)
    assert nodes.count() == 0


def test_only_those_bindings_wait_for_each_other_that_the_group_still_needs() -> None:
    nodes = Nodes("a")
    pods = [pod._replace(group=pod.group._replace(size=3)) for pod in group("job", 4)]
    known(nodes, *pods)
    for pod in pods:
        nodes.ask(pod)
    assert [nodes.come(pod) for pod in (pods[3], pods[3], pods[1])] == [set()] * 3
    assert len(nodes.come(pods[0])) == 3
    assert nodes.come(pods[2]) == {pods[2].uid}


def test_a_pod_whose_scheduler_no_longer_allows_its_node_moves_with_its_group() -> None:
    nodes, pods = Nodes("a", "b"), group("job", 2)
    known(nodes, *pods)
    nodes.ask(pods[0])
    nodes.ask(pods[1])
    spot = nodes.ask(pods[0], nodes="b")
    assert isinstance(spot, Spot)
    assert spot.node == "b"
    assert nodes.count() == 4


def test_a_pod_that_replaces_one_of_a_bound_group_goes_beside_the_others() -> None:
    nodes, pods = Nodes("a", "b", "c"), group("job", 3)
    known(nodes, *pods)
    for pod in pods:
        nodes.ask(pod)
    for pod in pods:
        spot = nodes.ask(pod)
        assert isinstance(spot, Spot)
        nodes.bind(pod, spot)
    [node] = {spot.node for spot in nodes.bound.values()}
    nodes.delete(pods[0])
    again = pods[0]._replace(uid="again", created="9")
    known(nodes, again)
    spot = nodes.ask(again)
    assert isinstance(spot, Spot)
    assert spot.node == node


def test_pods_beyond_the_least_number_are_placed_where_there_is_room() -> None:
    nodes = Nodes("a")
    pods = [pod._replace(group=pod.group._replace(size=3)) for pod in group("job", 5)]
    known(nodes, *pods)
    answers = [nodes.ask(pod) for pod in pods]
    assert [isinstance(each, Spot) for each in answers] == [False, False, True, True, False]
    assert nodes.count() == 8
    nodes.groups.expire(HOLD_SECONDS + 1)
    check_queues(nodes.groups)


@given(
    st.randoms(use_true_random=False),
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), max_size=6),
)
def test_groups_whose_pods_ask_in_any_order_are_whole_or_nothing_and_lose_no_gpu(
    chance: random.Random, sizes: list[tuple[int, int]]
) -> None:
    nodes = Nodes("a", "b")
    jobs = [group(f"g{n}", size, gpus, first=10 * n) for n, (size, gpus) in enumerate(sizes)]
    ahead = [pod for job in jobs for pod in job]
    chance.shuffle(ahead)
    waiting: list[GroupPod] = []
    for now in range(4 * len(ahead)):
        known(nodes, *ahead[-1:])
        waiting += ahead[-1:]
        del ahead[-1:]
        for pod in chance.sample(waiting, len(waiting)):
            if pod.uid not in nodes.bound:
                try_pod(nodes, pod, float(now), chance)
        waiting = [each for each in waiting if each.uid not in nodes.bound]
        if chance.random() < 0.1:
            nodes.groups.expire(1e6)
        if chance.random() < 0.05:
            restore(nodes, chance)
        check_queues(nodes.groups)
        assert all(_held(nodes, job) in (0, len(job)) for job in jobs)
    for pod in (*waiting, *waiting):
        if pod.uid not in nodes.bound and isinstance(nodes.ask(pod, 1e6), Spot):
            nodes.come(pod)
    unplaced = [job for job in jobs if job[0].uid not in nodes.bound]
    assert all(_parted(nodes, job) for job in unplaced)
    for job in jobs:
        for pod in job:
            nodes.delete(pod)
            check_queues(nodes.groups)
    assert nodes.count() == 0
    assert nodes.groups._queues == {}  # noqa: SLF001


def try_pod(nodes: Nodes, pod: GroupPod, now: float, chance: random.Random) -> None:
    """Ask for a pod's node, and perhaps let its binding wait for the others, in vain or not."""
    spot = nodes.ask(pod, now)
    if isinstance(spot, Spot) and chance.random() < 0.7:
        nodes.come(pod)
    elif isinstance(spot, Spot) and chance.random() < 0.1:
        nodes.groups.give_up(pod.uid)


def restore(nodes: Nodes, chance: random.Random) -> None:
    """Begin to lead again, with what the pods of some groups show as reserved."""
    found: dict[str, tuple[Spot, float]] = {}
    for each in nodes.groups._groups.values():  # noqa: SLF001
        if each.list_bound() or chance.random() < 0.5:
            found |= {uid: (spot, 0.0) for uid, spot in each.spots.items()}
        else:
            for uid in each.spots:
                nodes.release(uid)
    nodes.groups.restore(found)


def check_queues(groups: Groups) -> None:
    """Each group that waits for room is in the queue of its nodes once, and no other is."""
    places = [each.find_place() for each in groups._groups.values()]  # noqa: SLF001
    queued = [(of, each) for of, queue in groups._queues.items() for each in queue]  # noqa: SLF001
    assert sorted(each for _, each in queued) == sorted(each.order for each in places if each)
    assert {*queued} == {(each.nodes, each.order) for each in places if each}


def _held(nodes: Nodes, job: list[GroupPod]) -> int:
    """How many pods of a group have GPUs."""
    owners = {owner for taken in nodes.taken.values() for owner in taken.values()}
    return len(owners & {pod.uid for pod in job})


def _parted(nodes: Nodes, job: list[GroupPod]) -> bool:
    """Whether the nodes have too few GPUs beside each other for the pods of a group."""
    each = job[0].ask.gpus
    return sum(len(room.whole) // each for room in nodes.rooms()) < len(job)


def test_100_groups_of_4_pods_in_any_order_fill_60_nodes_to_the_last_gpu() -> None:
    chance = random.Random(3)
    nodes = Nodes(*(f"n{n:02}" for n in range(60)))
    jobs = [group(f"g{n}", 4, gpus=1 + (n % 5 == 0), first=4 * n) for n in range(100)]
    pods = [pod for job in jobs for pod in job]
    known(nodes, *pods)
    chance.shuffle(pods)
    for pod in pods * 2:
        spot = nodes.ask(pod)
        if isinstance(spot, Spot) and pod.uid not in nodes.bound:
            nodes.bind(pod, spot)
    assert len(nodes.bound) == 400
    assert nodes.count() == 480


NAME = "pod-group.scheduling.sigs.k8s.io/name"
SIZE = "pod-group.scheduling.sigs.k8s.io/min-available"


@pytest.mark.parametrize(
    "labels",
    [
        {"gpu-topology": "job", "gpu-topology-replica": "4"},
        {NAME: "job", SIZE: "4"},
        {NAME: "job", SIZE: "4", "gpu-topology": "job", "gpu-topology-replica": "4", "app": "x"},
    ],
)
def test_labels_make_a_group(labels: dict[str, str]) -> None:
    assert read_group("ml", labels) == GroupName("ml", "job", 4)


def test_a_pod_without_such_labels_is_in_no_group() -> None:
    assert read_group("ml", {"app": "x"}) is None


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ({"gpu-topology": "job"}, "label gpu-topology without gpu-topology-replica: expected both"),
        ({SIZE: "3"}, f"label {SIZE} without {NAME}: expected both"),
        (
            {"gpu-topology": "job", "gpu-topology-replica": "0"},
            "label gpu-topology-replica=0: expected a whole number from 1 to 9999",
        ),
        (
            {"gpu-topology": "a", "gpu-topology-replica": "2", NAME: "b", SIZE: "2"},
            "labels gpu-topology and pod-group.scheduling.sigs.k8s.io/name: expected one group",
        ),
    ],
)
def test_labels_that_make_no_group_get_a_sentence(labels: dict[str, str], sentence: str) -> None:
    with pytest.raises(GroupError) as error:
        read_group("ml", labels)
    assert str(error.value) == sentence


def test_pods_of_a_group_that_disagree_about_its_size_get_a_sentence() -> None:
    nodes, pods = Nodes("a"), group("job", 2)
    known(nodes, pods[0], pods[1]._replace(group=GroupName("ml", "job", 3)))
    sentence = "group job: its pods name 2 and 3 as its size: expected one number"
    assert [nodes.ask(pod) for pod in pods] == [sentence] * 2
