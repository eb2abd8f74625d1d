"""The pods of this node, as far as the agent has to know them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cgpu_env.errors import CgpuError
from cgpu_k8s.objects.fields import member, objects
from cgpu_k8s.objects.pods import read_pod
from cgpu_node import decision

if TYPE_CHECKING:
    from cgpu_k8s.objects.fields import Json

_STATUSES = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")


class Guest(NamedTuple):
    """A pod on this node.

    Attributes:
        uid: its UID.
        name: ``NAMESPACE/NAME``.
        shares: whether it asks for a part of a GPU, and has not ended for good.
        gpus: UUIDs of the GPUs that its decision names.
        containers: the ids of its containers that the kubelet has reported.
    """

    uid: str
    name: str
    shares: bool
    gpus: frozenset[str]
    containers: frozenset[str]


def read_guest(item: Json) -> Guest:
    """A pod's object.

    Raises:
        ObjectError: it is no pod.
    """
    pod, status = read_pod(item), member(item, "status", dict)
    ids = (
        member(each, "containerID", str).rpartition("/")[2]
        for kind in _STATUSES
        for each in objects(status, kind)
    )
    shares = pod.asks and not pod.final
    return Guest(
        pod.uid,
        f"{pod.namespace}/{pod.name}",
        shares,
        _gpus(pod.allocation) if shares else frozenset(),
        frozenset(filter(None, ids)),
    )


def _gpus(allocation: str) -> frozenset[str]:
    if not allocation:
        return frozenset()
    try:
        decided = decision.read(allocation)
    except CgpuError:  # the runtime refuses its containers, and says why
        return frozenset()
    return frozenset(uuid for grants in decided.containers.values() for uuid in grants)
