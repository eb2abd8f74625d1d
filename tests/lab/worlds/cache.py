"""Nodes, pods and allocations for the cache of a cluster, and all that it holds."""

from __future__ import annotations

from typing import Any

from cgpu_k8s.objects.allocations import Allocation, write_annotations
from cgpu_k8s.objects.gpus import CGPU, OfferedGpu
from cgpu_k8s.objects.nodes import BINPACK, Offer
from cgpu_k8s.objects.pod_request import ContainerRequest
from cgpu_k8s.objects.pods import Pod
from cgpu_k8s.scheduler.allocation import NodeInfo, allocate_gpus
from cgpu_k8s.scheduler.cache import SchedulerCache

UNITS = 4


def offer(name: str, units: int = UNITS, withheld: str = "") -> Offer:
    """A node with two GPUs."""
    gpus = {f"GPU-{name}-{n}": OfferedGpu(f"GPU-{name}-{n}", n, units << 10) for n in range(2)}
    return Offer(name, "", "" if withheld else CGPU, BINPACK, gpus, withheld)


def pod(uid: str, units: int = 1, gpus: int = 1, **changes: Any) -> Pod:
    containers = (ContainerRequest("main", units),)
    found = Pod(uid, "ns", f"name-{uid}", "", "", final=False, gpus=gpus, containers=containers,
                refusal="", apps=("main",), allocation_annotation="")  # fmt: skip
    return found._replace(**changes)


def bound(given_pod: Pod, allocation: Allocation) -> Pod:
    """The pod as its binding with a allocation leaves it."""
    gpus = offer(allocation.node).gpus
    text = write_annotations(allocation, given_pod, gpus, 1)["cgpu/allocation"]
    return given_pod._replace(node=allocation.node, allocation_annotation=text)


def on(given_pod: Pod, *uuids: str) -> Pod:
    """The pod, bound to some GPUs of a node."""
    node = uuids[0].split("-")[1]
    gpus = [OfferedGpu(uuid, n, 99 << 10) for n, uuid in enumerate(uuids)]
    assert given_pod.request is not None
    allocation = allocate_gpus(NodeInfo(node, CGPU, BINPACK, gpus), given_pod.request)
    assert isinstance(allocation, Allocation)
    return bound(given_pod, allocation)


def state(cache: SchedulerCache) -> Any:
    """Everything that a cache holds, in a form that compares."""
    return (
        cache.offers,
        {name: node.taken for name, node in cache.nodes.items()},
        {
            (name, uuid): node.used_part(uuid)
            for name, node in cache.nodes.items()
            for uuid in {*node.gpus, *(uuid for each in node.taken.values() for uuid in each.gpus)}
        },
        cache.pods,
        cache.bound,
        cache.problems,
    )
