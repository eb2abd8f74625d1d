"""Writes allocations to the annotations of pods, and reads them back.

Nodes follow only ``cgpu/allocation``. The other annotations are for two generations of published
tools. They name containers and GPUs by index, and init containers have no index.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from cgpu_env.errors import CgpuError
from cgpu_k8s import names
from cgpu_k8s.objects.pod_request import (
    WHOLE,
    Part,
    PodRequest,
    PodRequestError,
    compute_container_part,
    compute_pod_part,
)
from cgpu_node import allocation_annotation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cgpu_k8s.objects.gpus import OfferedGpu
    from cgpu_k8s.objects.pods import Pod

_YES = "true"


class Allocation(NamedTuple):
    """The GPUs of a pod, and its part of each.

    Attributes:
        pod: the UID of the pod.
        owner: the UID of its controller; "" if it has none.
        node: the name of its node.
        gpus: the UUIDs of its GPUs.
        part: the pod's part of each GPU.
        containers: each container's part of each GPU, by the container's name.
    """

    pod: str
    owner: str
    node: str
    gpus: tuple[str, ...]
    part: Part
    containers: Mapping[str, Part]


def write_annotations(
    allocation: Allocation, pod: Pod, gpus: Mapping[str, OfferedGpu], now: int
) -> dict[str, str]:
    """Return the annotations that a pod's binding adds.

    Args:
        allocation: what the pod gets.
        pod: the pod, for its group and the indices of its containers.
        gpus: the GPUs of the node, by UUID.
        now: the time in nanoseconds since 1970.
    """
    decided = {
        names.ALLOCATION: _write_allocation(allocation, gpus),
        **({names.GPU_GROUP: pod.group.name} if pod.group else {}),
    }
    if allocation.part == WHOLE:
        numbers = sorted(gpus[uuid].index for uuid in allocation.gpus)
        return {**decided, names.GPU_VISIBLE: ",".join(map(str, numbers))}
    return {
        **decided,
        **_write_framework(allocation, pod, gpus, now),
        **_write_device(allocation, gpus, now),
    }


def _write_allocation(allocation: Allocation, gpus: Mapping[str, OfferedGpu]) -> str:
    return allocation_annotation.format_annotation(
        allocation_annotation.AllocationAnnotation(
            allocation.pod,
            allocation.node,
            {
                name: {uuid: _grant_part(gpus[uuid], part) for uuid in allocation.gpus}
                for name, part in allocation.containers.items()
            },
        )
    )


def _grant_part(gpu: OfferedGpu, part: Part) -> allocation_annotation.Grant:
    mib = gpu.mib if part == WHOLE else gpu.mib_of(part.units)
    return allocation_annotation.Grant(mib, part.cores)


def _write_framework(
    allocation: Allocation, pod: Pod, gpus: Mapping[str, OfferedGpu], now: int
) -> dict[str, str]:
    parts = {
        index: allocation.containers[name]
        for index, name in enumerate(pod.apps)
        if name in allocation.containers
    }
    parts = parts or {0: allocation.part}  # only init containers ask: let tools show the pod's part

    def write_shares(resource: str) -> str:
        shares = {index: getattr(part, resource) for index, part in parts.items()}
        numbers = [gpus[uuid].index for uuid in allocation.gpus]
        return json.dumps(
            {index: dict.fromkeys(numbers, share) for index, share in shares.items()},
            separators=(",", ":"),
        )

    timed = {names.CORE_PERCENTAGE: write_shares("cores")} if allocation.part.cores else {}
    return {
        names.FRAMEWORK_ALLOCATION: write_shares("units"),
        names.FRAMEWORK_ASSIGNED: _YES,
        names.FRAMEWORK_ASSUME_TIME: str(now),
        **timed,
    }


def _write_device(
    allocation: Allocation, gpus: Mapping[str, OfferedGpu], now: int
) -> dict[str, str]:
    """Return the annotations for the older tools, which expect one GPU. Commas join several."""
    given = [gpus[uuid] for uuid in allocation.gpus]
    return {
        names.MEM_IDX: ",".join(str(gpu.index) for gpu in given),
        names.MEM_DEV: ",".join(str(gpu.units) for gpu in given),
        names.MEM_POD: str(allocation.part.units * len(given)),
        names.MEM_ASSIGNED: _YES,
        names.MEM_ASSUME_TIME: str(now),
    }


def read_allocation(pod: Pod) -> Allocation | None:
    """Return the allocation in a pod's annotation, or None if it has none or asks for no GPU.

    The GPUs come from the annotation. The part of each comes from the pod's specification, which is
    immutable. The label with the number of GPUs is not read, as it can change while the pod runs.

    Raises:
        CgpuError: the annotation does not match the pod. The message is one sentence.
    """
    if not pod.allocation_annotation or not pod.containers:
        return None
    found = allocation_annotation.parse_annotation(pod.allocation_annotation)
    for name, given, expected in (("pod", found.pod, pod.uid), ("node", found.node, pod.node)):
        if given != expected:
            raise _make_error(f"{name}={given}: expected {expected or 'none before the binding'}")
    asking = {each.name for each in pod.containers}
    if set(found.containers) != asking:
        raise _make_error(f"containers: expected {', '.join(sorted(asking))}")
    gpus = tuple(next(iter(found.containers.values())))
    request = PodRequest(pod.uid, pod.owner, len(gpus), pod.containers)
    asked = pod.containers[0].gpus  # 0 for shares: their number is a label, which can have changed
    if asked and asked != len(gpus):
        raise _make_error(f"{len(gpus)} GPUs: expected {asked}, the pod's {names.WHOLE_GPU}")
    try:
        part = compute_pod_part(request)
    except PodRequestError as error:
        raise _make_error(str(error)) from None
    shares = {each.name: compute_container_part(each, len(gpus)) for each in pod.containers}
    for name, share in shares.items():
        _check_grants(name, found.containers[name], set(gpus), share)
    return Allocation(pod.uid, pod.owner, pod.node, gpus, part, shares)


def _check_grants(
    name: str, grants: Mapping[str, allocation_annotation.Grant], gpus: set[str], share: Part
) -> None:
    if set(grants) != gpus:
        raise _make_error(f"containers.{name}: expected the same GPUs for each container")
    for uuid, grant in grants.items():
        if grant.core != share.cores:
            raise _make_error(f"containers.{name}.{uuid}.core={grant.core}: expected {share.cores}")


def _make_error(problem: str) -> CgpuError:
    return CgpuError(f"{names.ALLOCATION}: {problem}")
