"""The allocator's rules, for any nodes and pods, and beside brute force on small ones.

K8S-2, K8S-4, K8S-5, K8S-6.
"""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpu_k8s.objects.allocations import Allocation
from cgpu_k8s.objects.gpus import CGPU, CORE_MEM, OfferedGpu
from cgpu_k8s.objects.nodes import BINPACK, SPREAD
from cgpu_k8s.objects.pod_request import APP, SIDECAR, Container, Need, Part, part_of
from cgpu_k8s.scheduler.allocation import NodeInfo, allocate_gpus, select_node
from lab.worlds.allocation import PODS, bare, filled, fitting_nodes, needs, nodes

pytestmark = pytest.mark.unit


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
def test_pods_never_have_more_of_a_gpu_than_it_offers(node: NodeInfo, pods: list[Need]) -> None:
    made = filled(node, pods)
    for uuid, gpu in node.gpus.items():
        parts = [decision.part for decision in made if uuid in decision.gpus]
        assert not parts or gpu.healthy
        assert not parts or sum(part.units for part in parts) <= gpu.units - gpu.held
        assert sum(part.cores for part in parts) <= gpu.cores * (1 - gpu.held_slots / gpu.slots)
        assert sum(part.slots for part in parts) <= gpu.slots - gpu.held_slots


@given(nodes(), PODS)
def test_each_container_has_an_equal_part_of_each_gpu_of_its_pod(
    node: NodeInfo, pods: list[Need]
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
def test_a_node_has_only_pods_of_its_mode(node: NodeInfo, pods: list[Need]) -> None:
    for decision in filled(node, pods):
        assert (decision.part.cores > 0) == (node.mode == CORE_MEM)


@given(needs())
def test_a_pod_needs_what_its_containers_have_at_once_at_most(need: Need) -> None:
    assert part_of(need) == alive_at_most(need)


@given(nodes(), PODS, needs())
def test_without_a_pod_a_node_is_as_it_was_before(
    node: NodeInfo, pods: list[Need], more: Need
) -> None:
    filled(node, pods)
    other = more._replace(pod="other")
    used = {uuid: node.used_part(uuid) for uuid in node.gpus}
    probe = more._replace(pod="probe")
    before = allocate_gpus(node, probe)
    if isinstance(decision := allocate_gpus(node, other), Allocation):
        node.add(decision)
        assert {uuid: node.used_part(uuid) for uuid in node.gpus} != used
        node.remove("other")
    assert {uuid: node.used_part(uuid) for uuid in node.gpus} == used
    assert allocate_gpus(node, probe) == before


@given(nodes(), PODS, st.randoms(use_true_random=False), needs())
def test_without_all_its_pods_a_node_is_as_new(
    node: NodeInfo, pods: list[Need], chance: random.Random, probe: Need
) -> None:
    for decision in (made := filled(node, pods)):
        node.add(decision)  # entering it again counts nothing twice
    for decision in chance.sample(made, len(made)):
        node.remove(decision.pod)
        node.remove(decision.pod)
    new = bare(node)
    assert node.taken == {}
    assert [node.free_part(gpu) for gpu in node.gpus.values()] == [
        new.free_part(gpu) for gpu in new.gpus.values()
    ]
    assert allocate_gpus(node, probe) == allocate_gpus(new, probe)


@given(nodes(), PODS, st.randoms(use_true_random=False), needs())
def test_the_order_in_which_pods_are_entered_does_not_matter(
    node: NodeInfo, pods: list[Need], chance: random.Random, probe: Need
) -> None:
    made = filled(node, pods)
    again = bare(node)
    for decision in chance.sample(made, len(made)):
        again.add(decision)
    assert again.taken == node.taken
    assert {uuid: again.used_part(uuid) for uuid in again.gpus} == {
        uuid: node.used_part(uuid) for uuid in node.gpus
    }
    assert allocate_gpus(again, probe) == allocate_gpus(node, probe)


@given(nodes(), PODS, needs())
def test_a_pod_is_refused_only_where_no_choice_of_gpus_has_room(
    node: NodeInfo, pods: list[Need], need: Need
) -> None:
    filled(node, pods)
    part = part_of(need)
    open_to = [
        gpu
        for gpu in node.gpus.values()
        if gpu.healthy
        and all(have >= want for have, want in zip(node.free_part(gpu), part, strict=True))
    ]
    possible = any(itertools.combinations(open_to, need.gpus)) and (
        (part.cores > 0) == (node.mode == CORE_MEM)
    )
    assert isinstance(allocate_gpus(node, need), Allocation) == possible


@given(nodes(), PODS, needs())
def test_a_pod_gets_the_gpus_with_least_free_or_those_apart_from_its_replicas(
    node: NodeInfo, pods: list[Need], need: Need
) -> None:
    made = filled(node, pods)
    decision = allocate_gpus(node, need)
    if not isinstance(decision, Allocation):
        return

    def rank(uuid: str) -> tuple[int, ...]:
        mine = sum(
            uuid in each.gpus and each.owner == need.owner and bool(need.owner) for each in made
        )
        free = node.free_part(node.gpus[uuid]).units
        return (free,) if node.placement == BINPACK else (mine, -free)

    others = [
        uuid
        for uuid, gpu in node.gpus.items()
        if uuid not in decision.gpus
        and gpu.healthy
        and all(h >= w for h, w in zip(node.free_part(gpu), decision.part, strict=True))
    ]
    assert all(rank(mine) <= rank(other) for mine in decision.gpus for other in others)


@given(st.tuples(nodes("a"), nodes("b"), nodes("c")), PODS, needs())
def test_the_first_choice_is_the_best_of_all_choices_on_all_nodes(
    cluster: tuple[NodeInfo, ...], pods: list[Need], need: Need
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
            and all(have >= want for have, want in zip(node.free_part(gpu), part, strict=True))
        ]
        for gpus in itertools.combinations(fits, need.gpus):
            room = sum(node.free_part(node.gpus[uuid]).units for uuid in gpus)
            replicas = sum(
                uuid in each.gpus and each.owner == need.owner != ""
                for each in made
                for uuid in gpus
            )
            order = (0, room) if node.placement == BINPACK else (1, replicas, -room)
            whole = sum(node.free_part(gpu).units for gpu in node.gpus.values())
            costs[node.name, tuple(sorted(gpus))] = (*order, whole)
    fitting = fitting_nodes(cluster, need)
    assert bool(fitting) == bool(costs)
    if fitting:
        name = select_node(fitting)
        assert costs[name, tuple(sorted(fitting[name].gpus))] == min(costs.values())


@given(st.lists(st.integers(0, 3), max_size=5), PODS, needs())
def test_what_a_node_remembers_is_what_a_fresh_one_finds(
    asked: list[int], pods: list[Need], probe: Need
) -> None:
    node = NodeInfo("node", CGPU, SPREAD, [OfferedGpu(f"g{n}", n, 8) for n in range(3)])
    for n, need in enumerate(pods):
        allocate_gpus(node, probe)
        filled(node, [need])
        if n in asked:
            node.remove(f"pod-{n}")
        fresh = bare(node)
        for decision in node.taken.values():
            fresh.add(decision)
        assert allocate_gpus(node, probe) == allocate_gpus(fresh, probe)
