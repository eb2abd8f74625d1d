"""A pod's request for GPUs, and pure functions that compute its part of each GPU.

``units`` count memory as ``aliyun.com/gpu-mem`` does (GiB). ``cores`` are hundredths of a GPU's
time (``aliyun.com/gpu-core.percentage``). A request for whole GPUs (``aliyun.com/gpu``) has
neither.
"""

from __future__ import annotations

from typing import NamedTuple

APP, INIT, SIDECAR = "app", "init", "sidecar"  # a sidecar is an init container that keeps running
CORE_STEP = 5


class ContainerRequest(NamedTuple):
    """The request of one container, in total over all GPUs of its pod.

    Attributes:
        name: the name of the container.
        units: units of memory; 0 if it asks for whole GPUs.
        cores: hundredths of a GPU's time; 0 for no limit.
        kind: APP, INIT or SIDECAR.
        gpus: the number of whole GPUs; 0 if it asks for a part of each of the pod's GPUs.
    """

    name: str
    units: int
    cores: int = 0
    kind: str = APP
    gpus: int = 0


class PodRequest(NamedTuple):
    """The request of a pod.

    Attributes:
        pod: the UID of the pod.
        owner: the UID of the pod's controller; "" if it has none.
        gpus: how many GPUs each container gets, whole or with an equal part of each.
        containers: the containers that ask for GPUs, in the order in which they start.
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
WHOLE = Part(0, 0, 1)  # a whole GPU, of any size


class PodRequestError(ValueError):
    """No GPU of any node could satisfy the request of a pod. The message is one sentence."""


def compute_pod_part(request: PodRequest) -> Part:
    """Return the part of each of its GPUs that a pod takes during its whole life.

    As in Kubernetes (k8s.io/component-helpers/resource, PodRequests), this is, for each resource,
    the larger of two amounts: the sum of all containers and sidecars, and the largest sum of an
    init container and the sidecars that start before it.

    Raises:
        PodRequestError: an amount is out of range or cannot be divided equally among the GPUs, or
            only some of the containers ask for time.
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
        PodRequestError: an amount is out of range or cannot be divided equally among the GPUs. The
            sentence names the value and what is allowed.
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
