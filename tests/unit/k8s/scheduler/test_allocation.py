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
from cgpu_k8s.objects.pod_request import (
    APP,
    SIDECAR,
    ContainerRequest,
    Part,
    PodRequest,
    compute_pod_part,
)
from cgpu_k8s.scheduler.allocation import NodeInfo, allocate_gpus, select_node
from lab.worlds.allocation import PODS, bare, filled, fitting_nodes, nodes, requests

pytestmark = pytest.mark.unit


def alive_at_most(request: PodRequest) -> Part:
    """By the life of a pod: init containers one after the other, sidecars stay, then all others."""
    running: list[ContainerRequest] = []
    moments = []
    for each in request.containers:
        if each.kind != APP:
            moments.append([*running, each])
            running += [each] if each.kind == SIDECAR else []
    moments.append([*running, *(each for each in request.containers if each.kind == APP)])
    return Part(
        max(sum(each.units for each in now) for now in moments) // request.gpus,
        max(sum(each.cores for each in now) for now in moments) // request.gpus,
        max(len(now) for now in moments),
    )


@given(nodes(), PODS)
def test_pods_never_have_more_of_a_gpu_than_it_offers(
    node: NodeInfo, pods: list[PodRequest]
) -> None:
    made = filled(node, pods)
    for uuid, gpu in node.gpus.items():
        parts = [allocation.part for allocation in made if uuid in allocation.gpus]
        assert not parts or gpu.healthy
        assert not parts or sum(part.units for part in parts) <= gpu.units - gpu.held
        assert sum(part.cores for part in parts) <= gpu.cores * (1 - gpu.held_slots / gpu.slots)
        assert sum(part.slots for part in parts) <= gpu.slots - gpu.held_slots


@given(nodes(), PODS)
def test_each_container_has_an_equal_part_of_each_gpu_of_its_pod(
    node: NodeInfo, pods: list[PodRequest]
) -> None:
    wanted = {request.pod: request for request in pods}
    for allocation in filled(node, pods):
        request = wanted[allocation.pod]
        assert len(set(allocation.gpus)) == len(allocation.gpus) == request.gpus
        assert set(allocation.gpus) <= node.gpus.keys()
        assert allocation.containers.keys() == {each.name for each in request.containers}
        for each in request.containers:
            part = allocation.containers[each.name]
            assert (part.units * request.gpus, part.cores * request.gpus) == (
                each.units,
                each.cores,
            )
            assert part.cores % 5 == 0


@given(nodes(), PODS)
def test_a_node_has_only_pods_of_its_mode(node: NodeInfo, pods: list[PodRequest]) -> None:
    for allocation in filled(node, pods):
        assert (allocation.part.cores > 0) == (node.mode == CORE_MEM)


@given(requests())
def test_a_pod_needs_what_its_containers_have_at_once_at_most(asked: PodRequest) -> None:
    assert compute_pod_part(asked) == alive_at_most(asked)


@given(nodes(), PODS, requests())
def test_without_a_pod_a_node_is_as_it_was_before(
    node: NodeInfo, pods: list[PodRequest], more: PodRequest
) -> None:
    filled(node, pods)
    other = more._replace(pod="other")
    used = {uuid: node.used_part(uuid) for uuid in node.gpus}
    probe = more._replace(pod="probe")
    before = allocate_gpus(node, probe)
    if isinstance(allocation := allocate_gpus(node, other), Allocation):
        node.add(allocation)
        assert {uuid: node.used_part(uuid) for uuid in node.gpus} != used
        node.remove("other")
    assert {uuid: node.used_part(uuid) for uuid in node.gpus} == used
    assert allocate_gpus(node, probe) == before


@given(nodes(), PODS, st.randoms(use_true_random=False), requests())
def test_without_all_its_pods_a_node_is_as_new(
    node: NodeInfo, pods: list[PodRequest], chance: random.Random, probe: PodRequest
) -> None:
    for allocation in (made := filled(node, pods)):
        node.add(allocation)  # entering it again counts nothing twice
    for allocation in chance.sample(made, len(made)):
        node.remove(allocation.pod)
        node.remove(allocation.pod)
    new = bare(node)
    assert node.taken == {}
    assert [node.free_part(gpu) for gpu in node.gpus.values()] == [
        new.free_part(gpu) for gpu in new.gpus.values()
    ]
    assert allocate_gpus(node, probe) == allocate_gpus(new, probe)


@given(nodes(), PODS, st.randoms(use_true_random=False), requests())
def test_the_order_in_which_pods_are_entered_does_not_matter(
    node: NodeInfo, pods: list[PodRequest], chance: random.Random, probe: PodRequest
) -> None:
    made = filled(node, pods)
    again = bare(node)
    for allocation in chance.sample(made, len(made)):
        again.add(allocation)
    assert again.taken == node.taken
    assert {uuid: again.used_part(uuid) for uuid in again.gpus} == {
        uuid: node.used_part(uuid) for uuid in node.gpus
    }
    assert allocate_gpus(again, probe) == allocate_gpus(node, probe)


@given(nodes(), PODS, requests())
def test_a_pod_is_refused_only_where_no_choice_of_gpus_has_room(
    node: NodeInfo, pods: list[PodRequest], request: PodRequest
) -> None:
    filled(node, pods)
    part = compute_pod_part(request)
    open_to = [
        gpu
        for gpu in node.gpus.values()
        if gpu.healthy
        and all(have >= want for have, want in zip(node.free_part(gpu), part, strict=True))
    ]
    possible = any(itertools.combinations(open_to, request.gpus)) and (
        (part.cores > 0) == (node.mode == CORE_MEM)
    )
    assert isinstance(allocate_gpus(node, request), Allocation) == possible


@given(nodes(), PODS, requests())
def test_a_pod_gets_the_gpus_with_least_free_or_those_apart_from_its_replicas(
    node: NodeInfo, pods: list[PodRequest], request: PodRequest
) -> None:
    made = filled(node, pods)
    allocation = allocate_gpus(node, request)
    if not isinstance(allocation, Allocation):
        return

    def rank(uuid: str) -> tuple[int, ...]:
        mine = sum(
            uuid in each.gpus and each.owner == request.owner and bool(request.owner)
            for each in made
        )
        free = node.free_part(node.gpus[uuid]).units
        return (free,) if node.placement == BINPACK else (mine, -free)

    others = [
        uuid
        for uuid, gpu in node.gpus.items()
        if uuid not in allocation.gpus
        and gpu.healthy
        and all(h >= w for h, w in zip(node.free_part(gpu), allocation.part, strict=True))
    ]
    assert all(rank(mine) <= rank(other) for mine in allocation.gpus for other in others)


@given(st.tuples(nodes("a"), nodes("b"), nodes("c")), PODS, requests())
def test_the_first_choice_is_the_best_of_all_choices_on_all_nodes(
    cluster: tuple[NodeInfo, ...], pods: list[PodRequest], request: PodRequest
) -> None:
    part = compute_pod_part(request)
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
        for gpus in itertools.combinations(fits, request.gpus):
            room = sum(node.free_part(node.gpus[uuid]).units for uuid in gpus)
            replicas = sum(
                uuid in each.gpus and each.owner == request.owner != ""
                for each in made
                for uuid in gpus
            )
            order = (0, room) if node.placement == BINPACK else (1, replicas, -room)
            whole = sum(node.free_part(gpu).units for gpu in node.gpus.values())
            costs[node.name, tuple(sorted(gpus))] = (*order, whole)
    fitting = fitting_nodes(cluster, request)
    assert bool(fitting) == bool(costs)
    if fitting:
        name = select_node(fitting)
        assert costs[name, tuple(sorted(fitting[name].gpus))] == min(costs.values())


@given(st.lists(st.integers(0, 3), max_size=5), PODS, requests())
def test_what_a_node_remembers_is_what_a_fresh_one_finds(
    asked: list[int], pods: list[PodRequest], probe: PodRequest
) -> None:
    node = NodeInfo("node", CGPU, SPREAD, [OfferedGpu(f"g{n}", n, 8 << 10) for n in range(3)])
    for n, request in enumerate(pods):
        allocate_gpus(node, probe)
        filled(node, [request])
        if n in asked:
            node.remove(f"pod-{n}")
        fresh = bare(node)
        for allocation in node.taken.values():
            fresh.add(allocation)
        assert allocate_gpus(node, probe) == allocate_gpus(fresh, probe)
