"""Turns a new pod's requests for published resources into claims for the same. Pure.

Each container gets a claim of its own, because a claim has one cap. Init containers run one by one
before the others, so an init container reuses the claim of a container that asks for the same.
"""

from __future__ import annotations

from itertools import count, islice
from typing import TYPE_CHECKING, Any

from cgpu_k8s.dra.templates import ClaimShape, list_template_names, shape_part
from cgpu_k8s.names import CORES, MEMORY, SCHEDULE, SCHEDULERS, UNCHOSEN, WHOLE_GPU
from cgpu_k8s.objects.fields import get_member, get_objects, get_strings
from cgpu_k8s.objects.pod_request import APP, INIT, compute_container_part
from cgpu_k8s.objects.pods import read_pod

if TYPE_CHECKING:
    from collections.abc import Collection

    from cgpu_k8s.objects.fields import Json
    from cgpu_k8s.objects.pod_request import PodRequest
    from cgpu_k8s.objects.pods import Pod

    Step = dict[str, Any]

MODE = "dra"  # of nodes that give their GPUs to claims
CLUSTERS = "default-scheduler"
# In published documents, the name of our second scheduler means the cluster's own.
_OURS, *_PUBLISHED = SCHEDULERS
_ASKED = (MEMORY, CORES, WHOLE_GPU)


def convert_pod(pod: Json) -> list[Step]:
    """Return the JSON patch that turns a pod's requests into claims; empty: the pod stays as it is.

    A pod stays if it asks for nothing or for what is impossible, is of a group, names another
    scheduler, a node, or nodes with another use of GPUs, or needs templates beyond what the guard
    makes.

    Raises:
        ObjectError: it is no pod.
    """
    found, spec = read_pod(pod), get_member(pod, "spec", dict)
    if found.request is None or not _is_free(found, spec):
        return []
    shapes, claimed = _share_out(found.request)
    known = get_objects(spec, "resourceClaims")
    names = _choose_names({get_member(each, "name", str) for each in known}, len(shapes))
    sources = [
        {"name": name, "resourceClaimTemplateName": shape.name}
        for name, shape in zip(names, shapes, strict=True)
    ]
    if not {shape.name for shape in shapes} <= {*list_template_names([*known, *sources])}:
        return []
    steps = [_add("/spec/resourceClaims", [*known, *sources])]
    if get_member(spec, "schedulerName", str) != CLUSTERS:
        steps.append(_add("/spec/schedulerName", CLUSTERS))
    for path, container in _list_paths(spec):
        index = claimed.get(get_member(container, "name", str))
        if index is not None:
            resources = get_member(container, "resources", dict)
            steps.append(_add(f"{path}/resources", _claim(resources, names[index])))
    return steps


def _is_free(found: Pod, spec: Json) -> bool:
    """Return whether the cluster's scheduler may place a pod on nodes that give GPUs to claims."""
    scheduler = get_member(spec, "schedulerName", str)
    mode = get_strings(spec, "nodeSelector").get(SCHEDULE, MODE)
    return (
        scheduler in {*UNCHOSEN, *_PUBLISHED}
        and mode == MODE
        and not found.node
        and found.group is None
    )


def _share_out(request: PodRequest) -> tuple[list[ClaimShape], dict[str, int]]:
    """Return the shapes of a pod's claims, and for each container the index of its claim."""
    shapes: list[ClaimShape] = []
    claimed: dict[str, int] = {}
    reusable: dict[ClaimShape, int] = {}  # claims that are idle while an init container runs
    for init in (False, True):
        for each in request.containers:
            if (each.kind == INIT) is not init:
                continue
            shape = shape_part(compute_container_part(each, request.gpus), request.gpus)
            if not init or shape not in reusable:
                shapes.append(shape)
                claimed[each.name] = len(shapes) - 1
            else:
                claimed[each.name] = reusable[shape]
            if each.kind in {APP, INIT}:
                reusable[shape] = claimed[each.name]
    return shapes, claimed


def _choose_names(taken: Collection[str], number: int) -> list[str]:
    """Return ``number`` names for claims, none of which the pod has taken."""
    free = (name for index in count() if (name := f"cgpu-{index}") not in taken)
    return [*islice(free, number)]


def _list_paths(spec: Json) -> list[tuple[str, dict[str, Any]]]:
    """Return all containers of a pod, each with its JSON path."""
    return [
        (f"/spec/{kind}/{index}", each)
        for kind in ("initContainers", "containers")
        for index, each in enumerate(get_objects(spec, kind))
    ]


def _claim(resources: Json, name: str) -> dict[str, Any]:
    """Return a container's resources with a claim instead of the published resources."""
    kept = {
        kind: {key: value for key, value in amounts.items() if key not in _ASKED}
        for kind in ("limits", "requests")
        if (amounts := get_member(resources, kind, dict))
    }
    claims = [*get_objects(resources, "claims"), {"name": name}]
    return {**resources, **kept, "claims": claims}


def _add(path: str, value: object) -> Step:
    return {"op": "add", "path": path, "value": value}  # replaces what is there
