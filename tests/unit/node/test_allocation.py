"""The allocator's rules, for any nodes and pods, and beside brute force on small ones.

K8S-2, K8S-4, K8S-5, K8S-6.
"""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpu_node.allocation import (
    APP,
    BINPACK,
    CGPU,
    CORE_MEM,
    FULL,
    INIT,
    MOST_ANSWERS,
    SHARE,
    SIDECAR,
    SPREAD,
    TOO_FEW,
    TOO_LARGE,
    WRONG_MODE,
    Choice,
    Container,
    Decision,
    Gpu,
    Need,
    NeedError,
    Node,
    Part,
    Refusal,
    best,
    compare,
    decide,
    part_of,
)

pytestmark = pytest.mark.unit

KINDS = st.sampled_from((APP, APP, INIT, SIDECAR))


@st.composite
def needs(draw: st.DrawFn, pod: str = "pod") -> Need:
    """A pod whose numbers can be parted among its GPUs."""
    gpus = draw(st.integers(1, 3))
    timed = draw(st.booleans())
    containers = tuple(
        Container(
            f"c{n}",
            gpus * draw(st.integers(1, 6)),
            5 * gpus * draw(st.integers(1, 12)) if timed else 0,
            draw(KINDS),
        )
        for n in range(draw(st.integers(1, 3)))
    )
    return Need(pod, draw(st.sampled_from(("", "job", "set"))), gpus, containers)


@st.composite
def nodes(draw: st.DrawFn, name: str = "node") -> Node:
    """A node with GPUs of several sizes, some ill, some partly held by others."""
    gpus = [
        Gpu(
            f"{name}-{index}",
            index,
            draw(st.integers(1, 16)),
            healthy=draw(st.integers(0, 5)) > 0,
            held=draw(st.sampled_from((0, 0, 0, 2))),
            slots=draw(st.sampled_from((20, 3))),
        )
        for index in range(draw(st.integers(0, 4)))
    ]
    mode = draw(st.sampled_from((SHARE, CGPU, CORE_MEM)))
    return Node(name, mode, draw(st.sampled_from((BINPACK, SPREAD))), gpus)


PODS = st.lists(needs(), max_size=12).map(
    lambda found: [need._replace(pod=f"pod-{n}") for n, need in enumerate(found)]
)


def filled(node: Node, pods: list[Need]) -> list[Decision]:
    """The decisions of those pods that found room on a node, one after the other."""
    made = []
    for need in pods:
        decision = decide(node, need)
        if isinstance(decision, Decision):
            node.add(decision)
            made.append(decision)
    return made


def bare(node: Node) -> Node:
    """The same node, without pods and without answers."""
    return Node(node.name, node.mode, node.placement, node.gpus.values())


def alive_at_most(need: Need) -> Part:
    """By the life of a pod: init containers one after the other, sidecars stay, then all others."""
    running: list[Container] = []
    moments = []
    for each in need.containers:
        if each.kind != APP:
            moments.append([*running, each])
            running += [each] if each.kind == SIDECAR else []
    moments.append([*running, *(each for each in need.containers if each.kind == APP)])
    return Part(
        max(sum(each.units for each in now) for now in moments) // need.gpus,
        max(sum(each.cores for each in now) for now in moments) // need.gpus,
        max(len(now) for now in moments),
    )


@given(nodes(), PODS)
def test_pods_never_have_more_of_a_gpu_than_it_offers(node: Node, pods: list[Need]) -> None:
    made = filled(node, pods)
    for uuid, gpu in node.gpus.items():
        parts = [decision.part for decision in made if uuid in decision.gpus]
        assert not parts or gpu.healthy
        assert not parts or sum(part.units for part in parts) <= gpu.units - gpu.held
        assert sum(part.cores for part in parts) <= gpu.cores
        assert sum(part.slots for part in parts) <= gpu.slots


@given(nodes(), PODS)
def test_each_container_has_an_equal_part_of_each_gpu_of_its_pod(
    node: Node, pods: list[Need]
) -> None:
    wanted = {need.pod: need for need in pods}
    for decision in filled(node, pods):
        need = wanted[decision.pod]
        assert len(set(decision.gpus)) == len(decision.gpus) == need.gpus
        assert set(decision.gpus) <= node.gpus.keys()
        assert decision.containers.keys() == {each.name for each in need.containers}
        for each in need.containers:
            part = decision.containers[each.name]
            assert (part.units * need.gpus, part.cores * need.gpus) == (each.units, each.cores)
            assert part.cores % 5 == 0


@given(nodes(), PODS)
def test_a_node_has_only_pods_of_its_mode(node: Node, pods: list[Need]) -> None:
    for decision in filled(node, pods):
        assert (decision.part.cores > 0) == (node.mode == CORE_MEM)


@given(needs())
def test_a_pod_needs_what_its_containers_have_at_once_at_most(need: Need) -> None:
    assert part_of(need) == alive_at_most(need)


@given(nodes(), PODS, needs())
def test_without_a_pod_a_node_is_as_it_was_before(node: Node, pods: list[Need], more: Need) -> None:
    filled(node, pods)
    other = more._replace(pod="other")
    used = {uuid: node.used(uuid) for uuid in node.gpus}
    probe = more._replace(pod="probe")
    before = decide(node, probe)
    if isinstance(decision := decide(node, other), Decision):
        node.add(decision)
        assert {uuid: node.used(uuid) for uuid in node.gpus} != used
        node.remove("other")
    assert {uuid: node.used(uuid) for uuid in node.gpus} == used
    assert decide(node, probe) == before


@given(nodes(), PODS, st.randoms(use_true_random=False), needs())
def test_without_all_its_pods_a_node_is_as_new(
    node: Node, pods: list[Need], chance: random.Random, probe: Need
) -> None:
    for decision in (made := filled(node, pods)):
        node.add(decision)  # entering it again counts nothing twice
    for decision in chance.sample(made, len(made)):
        node.remove(decision.pod)
        node.remove(decision.pod)
    new = bare(node)
    assert node.taken == {}
    assert [node.free(gpu) for gpu in node.gpus.values()] == [
        new.free(gpu) for gpu in new.gpus.values()
    ]
    assert decide(node, probe) == decide(new, probe)


@given(nodes(), PODS, st.randoms(use_true_random=False), needs())
def test_the_order_in_which_pods_are_entered_does_not_matter(
    node: Node, pods: list[Need], chance: random.Random, probe: Need
) -> None:
    made = filled(node, pods)
    again = bare(node)
    for decision in chance.sample(made, len(made)):
        again.add(decision)
    assert again.taken == node.taken
    assert {uuid: again.used(uuid) for uuid in again.gpus} == {
        uuid: node.used(uuid) for uuid in node.gpus
    }
    assert decide(again, probe) == decide(node, probe)


@given(nodes(), PODS, needs())
def test_a_pod_is_refused_only_where_no_choice_of_gpus_has_room(
    node: Node, pods: list[Need], need: Need
) -> None:
    filled(node, pods)
    part = part_of(need)
    open_to = [
        gpu
        for gpu in node.gpus.values()
        if gpu.healthy
        and all(have >= want for have, want in zip(node.free(gpu), part, strict=True))
    ]
    possible = any(itertools.combinations(open_to, need.gpus)) and (
        (part.cores > 0) == (node.mode == CORE_MEM)
    )
    assert isinstance(decide(node, need), Decision) == possible


@given(nodes(), PODS, needs())
def test_a_pod_gets_the_gpus_with_least_free_or_those_apart_from_its_replicas(
    node: Node, pods: list[Need], need: Need
) -> None:
    made = filled(node, pods)
    decision = decide(node, need)
    if not isinstance(decision, Decision):
        return

    def rank(uuid: str) -> tuple[int, ...]:
        mine = sum(
            uuid in each.gpus and each.owner == need.owner and bool(need.owner) for each in made
        )
        free = node.free(node.gpus[uuid]).units
        return (free,) if node.placement == BINPACK else (mine, -free)

    others = [
        uuid
        for uuid, gpu in node.gpus.items()
        if uuid not in decision.gpus
        and gpu.healthy
        and all(h >= w for h, w in zip(node.free(gpu), decision.part, strict=True))
    ]
    assert all(rank(mine) <= rank(other) for mine in decision.gpus for other in others)


@given(st.tuples(nodes("a"), nodes("b"), nodes("c")), PODS, needs())
def test_the_first_choice_is_the_best_of_all_choices_on_all_nodes(
    cluster: tuple[Node, ...], pods: list[Need], need: Need
) -> None:
    part = part_of(need)
    costs: dict[tuple[str, tuple[str, ...]], tuple[int, ...]] = {}
    for node in cluster:
        made = filled(node, pods)
        fits = [
            uuid
            for uuid, gpu in node.gpus.items()
            if gpu.healthy
            and (part.cores > 0) == (node.mode == CORE_MEM)
            and all(have >= want for have, want in zip(node.free(gpu), part, strict=True))
        ]
        for gpus in itertools.combinations(fits, need.gpus):
            room = sum(node.free(node.gpus[uuid]).units for uuid in gpus)
            replicas = sum(
                uuid in each.gpus and each.owner == need.owner != ""
                for each in made
                for uuid in gpus
            )
            order = (0, room) if node.placement == BINPACK else (1, replicas, -room)
            whole = sum(node.free(gpu).units for gpu in node.gpus.values())
            costs[node.name, tuple(sorted(gpus))] = (*order, whole)
    fitting, _ = compare(cluster, need)
    assert bool(fitting) == bool(costs)
    if fitting:
        name = best(fitting)
        assert costs[name, tuple(sorted(fitting[name].gpus))] == min(costs.values())


@given(st.lists(st.integers(0, 3), max_size=5), PODS, needs())
def test_what_a_node_remembers_is_what_a_fresh_one_finds(
    asked: list[int], pods: list[Need], probe: Need
) -> None:
    node = Node("node", CGPU, SPREAD, [Gpu(f"g{n}", n, 8) for n in range(3)])
    for n, need in enumerate(pods):
        decide(node, probe)
        filled(node, [need])
        if n in asked:
            node.remove(f"pod-{n}")
        fresh = bare(node)
        for decision in node.taken.values():
            fresh.add(decision)
        assert decide(node, probe) == decide(fresh, probe)


def pod(name: str, units: int, cores: int = 0, *, gpus: int = 1, owner: str = "") -> Need:
    return Need(name, owner, gpus, (Container("main", units, cores),))


def refusal(node: Node, need: Need) -> Refusal:
    found = decide(node, need)
    assert isinstance(found, Refusal)
    return found


def test_three_of_30_percent_fit_one_gpu_and_the_fourth_goes_to_the_next() -> None:
    node = Node("node", CORE_MEM, BINPACK, [Gpu("a", 0, 15), Gpu("b", 1, 15)])
    made = filled(node, [pod(str(n), 2, 30) for n in range(4)])
    assert [decision.gpus for decision in made] == [("a",), ("a",), ("a",), ("b",)]


def test_replicas_go_apart_while_there_are_gpus_without_one() -> None:
    node = Node("node", CGPU, SPREAD, [Gpu("a", 0, 15), Gpu("b", 1, 12)])
    made = filled(node, [pod(str(n), 2, owner="set") for n in range(3)])
    assert [decision.gpus for decision in made] == [("a",), ("b",), ("a",)]


def test_a_node_at_rest_remembers_no_more_however_many_controllers_ask() -> None:
    node = Node("node", CGPU, SPREAD, [Gpu("a", 0, 15)])
    for n in range(1000):
        decide(node, pod("p", 1, owner=str(n)))
        assert len(node._answers) <= MOST_ANSWERS  # noqa: SLF001 (a cache is no promise)


def test_pods_without_a_controller_are_no_replicas_of_each_other() -> None:
    node = Node("node", CGPU, SPREAD, [Gpu("a", 0, 15), Gpu("b", 1, 12)])
    made = filled(node, [pod(str(n), 1) for n in range(3)])
    assert [decision.gpus for decision in made] == [("a",), ("a",), ("a",)]


def test_what_one_controller_is_told_is_not_told_to_another() -> None:
    node = Node("node", CGPU, SPREAD, [Gpu("a", 0, 15), Gpu("b", 1, 12)])
    filled(node, [pod("first", 1, owner="set")])
    decisions = [decide(node, pod("second", 1, owner=owner)) for owner in ("set", "other")]
    assert [each.gpus for each in decisions if isinstance(each, Decision)] == [("b",), ("a",)]


@pytest.mark.parametrize(
    ("mode", "need", "expected"),
    [
        (CORE_MEM, pod("p", 2), (WRONG_MODE, "takes no pod without aliyun.com/gpu-core")),
        (CGPU, pod("p", 2, 30), (WRONG_MODE, "takes no pod with aliyun.com/gpu-core")),
        (CGPU, pod("p", 6, gpus=3), (TOO_FEW, "3 GPUs are asked for, 2 are here")),
        (CGPU, pod("p", 16), (TOO_LARGE, "no GPU has 16 GiB of aliyun.com/gpu-mem in all")),
        (
            CGPU,
            pod("p", 24, gpus=2),
            (TOO_LARGE, "only 1 GPU has 12 GiB of aliyun.com/gpu-mem in all, and 2 are asked for"),
        ),
        (CGPU, pod("p", 9), (FULL, "no GPU has 9 GiB of aliyun.com/gpu-mem free")),
    ],
)
def test_a_refusal_says_what_is_lacking(mode: str, need: Need, expected: tuple[str, str]) -> None:
    node = Node("node", mode, BINPACK, [Gpu("a", 0, 15), Gpu("b", 1, 8)])
    node.add(Decision("x", "", "node", ("a",), Part(7, 0, 1), {}))
    code, text = expected
    found = refusal(node, need)
    assert found.code == code
    assert text in found.sentence


@pytest.mark.parametrize(
    ("containers", "gpus", "text"),
    [
        ([Container("main", 8)], 0, "aliyun.com/gpu-count=0: expected a whole number from 1"),
        ([Container("main", 8)], 3, "aliyun.com/gpu-mem=8: expected a multiple of"),
        ([Container("main", 0)], 1, "aliyun.com/gpu-mem=0: expected at least 1"),
        ([Container("main", 1, 33)], 1, "percentage=33: expected a multiple of 5 from 5 to 100"),
        ([Container("main", 1, -5)], 1, "percentage=-5: expected a multiple of 5 from 5 to 100"),
        ([Container("main", 1, 105)], 1, "percentage=105: expected a multiple of 5 from 5 to 100"),
        ([Container("main", 2, 15)], 2, "a multiple of 10 from 10 to 200, 5 to 100 of each of"),
        ([Container("a", 1, 30), Container("b", 1)], 1, "expected all or none to ask"),
    ],
)
def test_what_no_gpu_could_give_is_refused_before_any_node_is_asked(
    containers: list[Container], gpus: int, text: str
) -> None:
    with pytest.raises(NeedError, match=text.replace("%", ".")):
        compare([], Need("p", "", gpus, tuple(containers)))


@pytest.mark.long
def test_ten_thousand_pods_on_a_thousand_nodes_have_no_unit_too_many() -> None:
    chance = random.Random(20261123)
    cluster = {
        f"n{n}": Node(
            f"n{n}", CGPU, BINPACK, [Gpu(f"n{n}-{k}", k, 15 + (n + k) % 3) for k in range(8)]
        )
        for n in range(1000)
    }
    live: list[Decision] = []
    for n in range(10_000):
        need = pod(str(n), chance.choice((1, 2, 3, 5, 8, 12)))
        fitting: dict[str, Choice]
        fitting, _ = compare(cluster.values(), need)
        node = cluster[best(fitting)]
        decision = decide(node, need)
        assert isinstance(decision, Decision)
        node.add(decision)
        live.append(decision)
        if chance.random() < 0.2:
            gone = live.pop(chance.randrange(len(live)))
            cluster[gone.node].remove(gone.pod)
    taken: dict[str, int] = {}
    for decision in live:
        for uuid in decision.gpus:
            taken[uuid] = taken.get(uuid, 0) + decision.part.units
    assert all(
        taken.get(uuid, 0) == node.used(uuid).units <= gpu.units
        for node in cluster.values()
        for uuid, gpu in node.gpus.items()
    )


def test_pods_of_3_gib_fill_gpus_of_15_one_after_the_other() -> None:
    cluster = {
        f"n{n}": Node(f"n{n}", CGPU, BINPACK, [Gpu(f"n{n}-{k}", k, 15) for k in range(8)])
        for n in range(100)
    }
    for n in range(500):
        fitting, _ = compare(cluster.values(), pod(str(n), 3))
        node = cluster[best(fitting)]
        decision = decide(node, pod(str(n), 3))
        assert isinstance(decision, Decision)
        node.add(decision)
    assert sum(node.used(uuid).units > 0 for node in cluster.values() for uuid in node.gpus) == 100
