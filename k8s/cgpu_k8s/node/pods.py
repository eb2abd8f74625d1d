"""The pods of this node, reduced to what the agent needs; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cgpu_env.errors import CgpuError
from cgpu_k8s.objects.fields import get_member, get_objects
from cgpu_k8s.objects.pods import read_pod
from cgpu_node import allocation_annotation
from cgpu_node.podspecs import Limit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cgpu_k8s.objects.fields import Json

_STATUSES = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")


class NodePod(NamedTuple):
    """A pod on this node.

    Attributes:
        uid: its UID.
        name: ``NAMESPACE/NAME``.
        shares: whether it asks for GPUs or a part of one, and has not ended.
        gpus: the UUIDs of the GPUs in its decision; empty if it has none.
        limits: the limits of its containers, by name.
        running: the names of its running containers.
    """

    uid: str
    name: str
    shares: bool
    gpus: frozenset[str]
    limits: Mapping[str, Limit]
    running: frozenset[str]

    @property
    def namespace(self) -> str:
        """Return the pod's namespace."""
        return self.name.partition("/")[0]


def read_node_pod(item: Json) -> NodePod:
    """Return what the agent needs of a pod's object.

    Raises:
        ObjectError: ``item`` is not a pod.
    """
    pod, status = read_pod(item), get_member(item, "status", dict)
    running = (
        get_member(each, "name", str)
        for kind in _STATUSES
        for each in get_objects(status, kind)
        if "running" in get_member(each, "state", dict)
    )
    shares = pod.asks_for_gpu and not pod.final
    return NodePod(
        pod.uid,
        f"{pod.namespace}/{pod.name}",
        shares,
        _read_gpus(pod.allocation_annotation) if shares else frozenset(),
        {each.name: Limit(each.units, each.cores, each.gpus) for each in pod.containers},
        frozenset(running),
    )


def _read_gpus(text: str) -> frozenset[str]:
    if not text:
        return frozenset()
    try:
        found = allocation_annotation.parse_annotation(text)
    except CgpuError:  # the runtime refuses the pod's containers, and says why
        return frozenset()
    return frozenset(uuid for grants in found.containers.values() for uuid in grants)
