"""Reads the GPUs that a pod asks for, and other facts, from the pod's object."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from cgpu_env.errors import printable
from cgpu_k8s.names import (
    ALLOCATION,
    CORES,
    COUNT,
    MEMORY,
    OTHERS_GPU,
    RESERVATION,
    WHOLE_GPU,
)
from cgpu_k8s.objects.fields import get_member, get_objects, get_strings
from cgpu_k8s.objects.groups import GroupError, GroupName, read_group
from cgpu_k8s.objects.pod_request import (
    APP,
    INIT,
    SIDECAR,
    ContainerRequest,
    PodRequest,
    PodRequestError,
    compute_pod_part,
)
from cgpu_k8s.objects.quantities import parse_quantity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cgpu_k8s.objects.fields import Json

MOST_GPUS = 16  # of one pod
_COUNTED = re.compile(r"[0-9]{1,4}")
_FINAL = ("Succeeded", "Failed")


class Pod(NamedTuple):
    """The facts of a pod that cgpu needs.

    Attributes:
        uid: its UID; "" while it is being created.
        namespace: its namespace.
        name: its name in the namespace.
        owner: the UID of its controller; "" if it has none.
        node: the name of its node; "" while it is not bound.
        final: whether it has succeeded or failed, so that its containers have ended for good. A pod
            that is being deleted still runs: its GPUs are free only once it is final or gone.
        gpus: the number of its whole GPUs, or of the GPUs over which its share is divided. The
            latter is a label, which can change later.
        containers: the containers that ask for GPUs, in the order in which they start.
        refusal: why no GPU could satisfy its request; "" if one could, or if it asks for none.
        apps: the names of its containers, in order, without init containers.
        allocation_annotation: its annotation ``cgpu/allocation``; "" if it has none.
        labels: its labels.
        created: its creation time, as text that sorts by time.
        annotations: its annotations.
        terminating: whether it is being deleted.
        nominated: the node where its scheduler has evicted other pods for it; "" if none.
        unschedulable: whether its scheduler has found no node for it.
        resources: the kind of each container, and its ``resources`` as in the object.
        group: its group; None if it is in none, or asks for no GPU.
        reservation: its annotation ``cgpu/reservation``; "" if it has none.
    """

    uid: str
    namespace: str
    name: str
    owner: str
    node: str
    final: bool
    gpus: int
    containers: tuple[ContainerRequest, ...]
    refusal: str
    apps: tuple[str, ...]
    allocation_annotation: str
    labels: Mapping[str, str] = {}
    created: str = ""
    annotations: Mapping[str, str] = {}
    terminating: bool = False
    nominated: str = ""
    unschedulable: bool = False
    resources: tuple[tuple[str, Json], ...] = ()
    group: GroupName | None = None
    reservation: str = ""

    @property
    def request(self) -> PodRequest | None:
        """Return its request for GPUs; None if it has none, or one that no GPU could satisfy."""
        if not self.containers or self.refusal:
            return None
        return PodRequest(self.uid, self.owner, self.gpus, self.containers)

    @property
    def asks_for_gpu(self) -> bool:
        """Whether it asks for GPUs or a share of them, possible or not."""
        return bool(self.containers or self.refusal)


def read_pod(pod: Json) -> Pod:
    """Read a pod's object, as the API server, an admission review or a scheduler sends it.

    Raises:
        ObjectError: the pod is malformed.
    """
    meta, spec = get_member(pod, "metadata", dict), get_member(pod, "spec", dict)
    status, notes = get_member(pod, "status", dict), get_strings(meta, "annotations")
    gpus, refusal = 1, ""
    containers: tuple[ContainerRequest, ...] = ()
    try:
        containers = _read_containers(spec)
        gpus = _count_whole(containers) or (_read_count(meta) if containers else 1)
    except PodRequestError as error:
        refusal = str(error)
    found = Pod(
        uid=get_member(meta, "uid", str),
        namespace=get_member(meta, "namespace", str),
        name=get_member(meta, "name", str),
        owner=_read_owner(meta),
        node=get_member(spec, "nodeName", str),
        final=get_member(status, "phase", str) in _FINAL,
        gpus=gpus,
        containers=containers,
        refusal=refusal,
        apps=tuple(get_member(each, "name", str) for each in get_objects(spec, "containers")),
        allocation_annotation=notes.get(ALLOCATION, ""),
        labels=get_strings(meta, "labels"),
        created=get_member(meta, "creationTimestamp", str),
        reservation=notes.get(RESERVATION, ""),
        annotations=notes,
        terminating=bool(get_member(meta, "deletionTimestamp", str)),
        nominated=get_member(status, "nominatedNodeName", str),
        unschedulable=any(
            (each.get("type"), each.get("reason")) == ("PodScheduled", "Unschedulable")
            for each in get_objects(status, "conditions")
        ),
        resources=tuple(
            (kind, get_member(each, "resources", dict)) for kind, each in _list_containers(spec)
        ),
    )
    try:
        if found.request is None:
            return found
        compute_pod_part(found.request)
        return found._replace(group=read_group(found.namespace, found.labels))
    except (PodRequestError, GroupError) as error:
        return found._replace(refusal=str(error))


def template_of(item: Json) -> Json:
    """Return the pod template of a Job, CronJob, Deployment or the like, in the form of a pod.

    Raises:
        ObjectError: the object is malformed.
    """
    spec = get_member(item, "spec", dict)
    if "jobTemplate" in spec:
        spec = get_member(get_member(spec, "jobTemplate", dict), "spec", dict)
    return get_member(spec, "template", dict)


def _read_containers(spec: Json) -> tuple[ContainerRequest, ...]:
    """Return the containers of a pod's specification that ask for GPUs.

    Raises:
        PodRequestError: a container asks for what no GPU could give.
        ObjectError: the specification is malformed.
    """
    found = (_read_container(each, kind) for kind, each in _list_containers(spec))
    return tuple(each for each in found if each is not None)


def _list_containers(spec: Json) -> list[tuple[str, dict[str, Any]]]:
    """Return all containers of a pod, with their kinds, in the order in which they start."""
    first = get_objects(spec, "initContainers")
    stays = [get_member(each, "restartPolicy", str) == "Always" for each in first]
    return [
        *((SIDECAR if stay else INIT, each) for stay, each in zip(stays, first, strict=True)),
        *((APP, each) for each in get_objects(spec, "containers")),
    ]


def _read_container(container: Json, kind: str) -> ContainerRequest | None:
    """Return a container's request for GPUs, or None if it has none."""
    name = get_member(container, "name", str)
    resources = get_member(container, "resources", dict)
    limits = get_member(resources, "limits", dict)
    requests = get_member(resources, "requests", dict)
    asked = {**requests, **limits}
    if COUNT in asked:
        raise PodRequestError(
            f"container {name}: {COUNT} is no resource to ask for: expected the pod's label"
            f" {COUNT}, beside {MEMORY} in the container's limits"
        )
    if WHOLE_GPU in asked:
        return _read_whole(name, limits, requests)._replace(kind=kind)
    if not {MEMORY, CORES} & asked.keys():
        return None
    if OTHERS_GPU in asked:
        raise PodRequestError(f"container {name}: expected {MEMORY} or {OTHERS_GPU}, not both")
    if MEMORY not in asked:
        raise PodRequestError(
            f"container {name}: {CORES} without {MEMORY}: expected both in its limits"
        )
    cores = _read_amount(name, CORES, limits, requests) if CORES in asked else 0
    if CORES in asked and cores == 0:
        raise PodRequestError(
            f"container {name}: {CORES}=0: expected at least 5 of each GPU, or no {CORES}"
        )
    return ContainerRequest(name, _read_amount(name, MEMORY, limits, requests), cores, kind)


def _read_whole(name: str, limits: Json, requests: Json) -> ContainerRequest:
    """Return the request of a container for whole GPUs."""
    for other in (MEMORY, CORES, OTHERS_GPU):
        if other in limits or other in requests:
            raise PodRequestError(f"container {name}: expected {WHOLE_GPU} or {other}, not both")
    gpus = _read_amount(name, WHOLE_GPU, limits, requests)
    if not 1 <= gpus <= MOST_GPUS:
        raise PodRequestError(
            f"container {name}: {WHOLE_GPU}={gpus}: expected a whole number from 1 to {MOST_GPUS}"
        )
    return ContainerRequest(name, 0, gpus=gpus)


def _count_whole(containers: tuple[ContainerRequest, ...]) -> int:
    """Return how many whole GPUs a pod asks for. Only one of its containers may ask for them."""
    whole = [each for each in containers if each.gpus]
    if whole and len(containers) > 1:
        raise PodRequestError(
            f"container {whole[0].name}: expected {WHOLE_GPU} in one container of a pod, and"
            f" neither {WHOLE_GPU} nor {MEMORY} in others"
        )
    return whole[0].gpus if whole else 0


def _read_amount(container: str, resource: str, limits: Json, requests: Json) -> int:
    """Return the amount of a resource in a container's limits. A request must equal the limit."""
    if resource not in limits:
        raise PodRequestError(
            f"container {container}: {resource} in requests only: expected in limits"
        )
    limit = parse_quantity(limits[resource])
    if limit is None:
        raise PodRequestError(
            f"container {container}: {resource}={printable(str(limits[resource]))}: expected a"
            f" whole number without a unit"
        )
    if resource in requests and parse_quantity(requests[resource]) != limit:
        raise PodRequestError(
            f"container {container}: {resource}={limit} in limits and"
            f" {printable(str(requests[resource]))} in requests: expected the same, or limits alone"
        )
    return limit


def _read_count(meta: Json) -> int:
    """Return over how many GPUs a pod's share is divided: the label, or 1 without it."""
    label = get_strings(meta, "labels").get(COUNT, "1")
    count = int(label) if _COUNTED.fullmatch(label) else 0
    if not 1 <= count <= MOST_GPUS:
        raise PodRequestError(
            f"label {COUNT}={printable(label)}: expected a whole number from 1 to {MOST_GPUS}"
        )
    return count


def _read_owner(meta: Json) -> str:
    """Return the UID of a pod's controller; "" if it has none."""
    owners = get_objects(meta, "ownerReferences")
    return next((get_member(each, "uid", str) for each in owners if each.get("controller")), "")


def read_wait(pod: Json) -> str:
    """Return why a pod's scheduler has found no node for it; "" if it has, or has not tried.

    Raises:
        ObjectError: it is no pod.
    """
    conditions = get_objects(get_member(pod, "status", dict), "conditions")
    scheduled = (each for each in conditions if each.get("type") == "PodScheduled")
    return next((get_member(each, "message", str) for each in scheduled), "")
