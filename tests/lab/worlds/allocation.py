"""Nodes and pods for the allocator: any, or as a test names them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from cgpu_k8s.objects.allocations import Allocation
from cgpu_k8s.objects.gpus import CGPU, CORE_MEM, SHARE, OfferedGpu
from cgpu_k8s.objects.nodes import BINPACK, SPREAD
from cgpu_k8s.objects.pod_request import (
    APP,
    INIT,
    SIDECAR,
    ContainerRequest,
    PodRequest,
    compute_pod_part,
)
from cgpu_k8s.scheduler.allocation import Choice, NodeInfo, allocate_gpus

if TYPE_CHECKING:
    from collections.abc import Iterable

KINDS = st.sampled_from((APP, APP, INIT, SIDECAR))


@st.composite
def requests(draw: st.DrawFn, pod: str = "pod") -> PodRequest:
    """A pod whose numbers can be parted among its GPUs."""
    gpus = draw(st.integers(1, 3))
    timed = draw(st.booleans())
    containers = tuple(
        ContainerRequest(
            f"c{n}",
            gpus * draw(st.integers(1, 6)),
            5 * gpus * draw(st.integers(1, 12)) if timed else 0,
            draw(KINDS),
        )
        for n in range(draw(st.integers(1, 3)))
    )
    return PodRequest(pod, draw(st.sampled_from(("", "job", "set"))), gpus, containers)


@st.composite
def nodes(draw: st.DrawFn, name: str = "node") -> NodeInfo:
    """A node with GPUs of several sizes, some ill, some partly held by others."""
    gpus = [
        OfferedGpu(
            f"{name}-{index}",
            index,
            draw(st.integers(1, 16)) << 10,
            healthy=draw(st.integers(0, 5)) > 0,
            held=draw(st.sampled_from((0, 0, 0, 2))),
            held_slots=draw(st.sampled_from((0, 0, 0, 2))),
            slots=draw(st.sampled_from((20, 3))),
        )
        for index in range(draw(st.integers(0, 4)))
    ]
    mode = draw(st.sampled_from((SHARE, CGPU, CORE_MEM)))
    return NodeInfo(name, mode, draw(st.sampled_from((BINPACK, SPREAD))), gpus)


PODS = st.lists(requests(), max_size=12).map(
    lambda found: [request._replace(pod=f"pod-{n}") for n, request in enumerate(found)]
)


def filled(node: NodeInfo, pods: list[PodRequest]) -> list[Allocation]:
    """The allocations of those pods that found room on a node, one after the other."""
    made = []
    for request in pods:
        allocation = allocate_gpus(node, request)
        if isinstance(allocation, Allocation):
            node.add(allocation)
            made.append(allocation)
    return made


def bare(node: NodeInfo) -> NodeInfo:
    """The same node, without pods and without answers."""
    return NodeInfo(node.name, node.mode, node.placement, node.gpus.values())


def pod(name: str, units: int, cores: int = 0, *, gpus: int = 1, owner: str = "") -> PodRequest:
    return PodRequest(name, owner, gpus, (ContainerRequest("main", units, cores),))


def fitting_nodes(nodes: Iterable[NodeInfo], request: PodRequest) -> dict[str, Choice]:
    """What each node that has room for a pod would give it, by name."""
    part = compute_pod_part(request)
    choices = {node.name: node.choose(request, part) for node in nodes}
    return {name: choice for name, choice in choices.items() if isinstance(choice, Choice)}
