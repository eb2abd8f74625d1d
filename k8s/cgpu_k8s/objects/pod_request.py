"""A pod's request for GPUs, and the part of each GPU that follows from it: pure.

Units are those that a node publishes as ``aliyun.com/gpu-mem`` (GiB), cores are hundredths of a
GPU's time (``aliyun.com/gpu-core.percentage``). Who asks for whole GPUs (``aliyun.com/gpu``) asks
for neither.
"""

from __future__ import annotations

from typing import NamedTuple

APP, INIT, SIDECAR = "app", "init", "sidecar"  # a sidecar is an init container that stays
CORE_STEP = 5


class ContainerRequest(NamedTuple):
    """The request of one container of a pod, over all GPUs of the pod together.

    Attributes:
        name: the container's.
        units: of memory; 0 with whole GPUs.
        cores: of time; 0: no limit.
        kind: APP, INIT or SIDECAR.
        gpus: whole GPUs; 0: it asks for a part of each of the pod's.
    """

    name: str
    units: int
    cores: int = 0
    kind: str = APP
    gpus: int = 0


class PodRequest(NamedTuple):
    """The request of a pod.

    Attributes:
        pod: its UID.
        owner: the UID of its controller; "": none.
        gpus: how many GPUs each container gets, whole or with an equal part of each.
        containers: those that ask for GPUs, in the order of the pod's specification.
    """

    pod: str
    owner: str
    gpus: int
    containers: tuple[ContainerRequest, ...]


class Part(NamedTuple):
    """The part of each of its GPUs that a pod or a container has."""

    units: int
    cores: int
    slots: int = 1


NOTHING = Part(0, 0, 0)
WHOLE = Part(0, 0, 1)  # all of a GPU, whatever it has


class PodRequestError(ValueError):
    """The request of a pod fits on no GPU of any node; one sentence."""


def compute_pod_part(request: PodRequest) -> Part:
    """Return the part of each of its GPUs that a pod takes while it lives.

    Kubernetes' own rule, for each resource, is the larger of two amounts: what containers and
    sidecars take together, and the most that an init container takes with the sidecars that started
    before it (k8s.io/component-helpers/resource, PodRequests).

    Raises:
        PodRequestError: a container's memory or time has no equal parts, or no time beside others'
            time.
    """
    stays = peak = NOTHING
    for each in request.containers:
        if each.kind == APP:
            continue
        beside = _add_parts(stays, compute_container_part(each, request.gpus))
        stays = beside if each.kind == SIDECAR else stays
        peak = _max_parts(peak, beside)
    for each in request.containers:
        if each.kind == APP:
            stays = _add_parts(stays, compute_container_part(each, request.gpus))
    if len({each.cores > 0 for each in request.containers}) > 1:
        raise PodRequestError(
            "containers of one pod: expected all or none to ask for aliyun.com/gpu-core.percentage"
        )
    return _max_parts(peak, stays)


def compute_container_part(container: ContainerRequest, gpus: int) -> Part:
    """Return the part of each of ``gpus`` GPUs that a container has.

    Raises:
        PodRequestError: one sentence that names the value and what is allowed.
    """
    name, units, cores, _, whole = container
    if whole:
        return WHOLE
    if gpus < 1:
        raise PodRequestError(f"aliyun.com/gpu-count={gpus}: expected a whole number from 1")
    if units < 1:
        raise PodRequestError(f"container {name}: aliyun.com/gpu-mem={units}: expected at least 1")
    if units % gpus:
        raise PodRequestError(
            f"container {name}: aliyun.com/gpu-mem={units}: expected a multiple of"
            f" aliyun.com/gpu-count={gpus}"
        )
    least, most = CORE_STEP * gpus, 100 * gpus
    if cores % least or not 0 <= cores <= most:
        raise PodRequestError(
            f"container {name}: aliyun.com/gpu-core.percentage={cores}: expected a multiple of"
            f" {least} from {least} to {most}"
            + (f", {CORE_STEP} to 100 of each of {gpus} GPUs" * (gpus > 1))
        )
    return Part(units // gpus, cores // gpus, 1)


def _add_parts(one: Part, other: Part) -> Part:
    return Part(one.units + other.units, one.cores + other.cores, one.slots + other.slots)


def _max_parts(one: Part, other: Part) -> Part:
    return Part(*map(max, one, other))
