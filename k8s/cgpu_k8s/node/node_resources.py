"""Computes a node's labels, annotation and resources from its GPUs; pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from cgpu_k8s.names import (
    CORES,
    FACTS,
    GPU_COUNT,
    GPU_MEMORY,
    GPU_NAME,
    MEMORY,
    NODE_LABELS,
    NODE_RESOURCES,
    WHOLE_GPU,
)
from cgpu_k8s.node.non_pod_usage import NonPodUsage
from cgpu_k8s.objects.fields import get_member, get_strings
from cgpu_k8s.objects.gpus import (
    CORE_MEM,
    TOPOLOGY,
    UNIT_MIB,
    FactsError,
    OfferedGpu,
    read_facts,
    write_facts,
)
from cgpu_k8s.objects.links import arrange_links
from cgpu_k8s.objects.quantities import parse_quantity
from cgpu_node.settings.kubernetes import RULES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from cgpu_k8s.objects.fields import Json
    from cgpu_k8s.objects.links import GpuLink

SLOTS = 20  # containers on a GPU, if the mode sets no limit
_LONGEST_LABEL = 63
_NO_LABEL = re.compile(r"[^A-Za-z0-9._-]+")


class DriverGpu(NamedTuple):
    """A GPU as the driver reports it.

    Attributes:
        uuid: its UUID; "" if it does not answer and the driver does not know the UUID.
        index: its index in the driver.
        name: its product name; "" if it does not answer.
        mib: its memory in MiB; 0 if it does not answer.
        lost: why it does not answer, and what to do; "" if it answers.
        links: its links to the GPUs of higher index, by index.
        in_mig_mode: whether MIG divides it.
    """

    uuid: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which nothing uses
    name: str
    mib: int
    lost: str = ""
    links: Mapping[int, GpuLink] = {}
    in_mig_mode: bool = False


class NodeResources(NamedTuple):
    """The entries of a node's object about its GPUs; all empty if the node offers nothing.

    Attributes:
        annotations: ``cgpu/gpus`` with its value.
        labels: the labels that published tools read.
        resources: the amount of each resource.
    """

    annotations: Mapping[str, str]
    labels: Mapping[str, str]
    resources: Mapping[str, int]


NOTHING = NodeResources({}, {}, {})


def read_known_gpus(node: Json) -> tuple[OfferedGpu, ...]:
    """Return the GPUs in the node's annotation; none if it is missing or not readable."""
    notes = get_strings(get_member(node, "metadata", dict), "annotations")
    try:
        return read_facts(notes.get(FACTS, "")).gpus
    except FactsError:
        return ()


def compute_facts(
    mode: str,
    seen: Iterable[DriverGpu],
    before: Iterable[OfferedGpu],
    kept: Collection[str],
    held: Mapping[str, NonPodUsage],
) -> tuple[OfferedGpu, ...]:
    """Return the node's GPUs for its annotation.

    They include lost GPUs, so that the scheduler's cache keeps the pods on them. A lost GPU gets no
    new pods.

    Args:
        mode: the mode in force on the node.
        seen: the GPUs that answer. GPUs below 1 GiB are left out.
        before: the GPUs in the annotation until now; their indices may be out of date.
        kept: UUIDs of the GPUs that stay in the annotation if they do not answer.
        held: the memory and weights that others than pods hold, by UUID.
    """
    slots = RULES[mode].get("max_inst", SLOTS)
    found = [
        OfferedGpu(gpu.uuid, gpu.index, gpu.mib, slots=slots) for gpu in seen if gpu.mib >= UNIT_MIB
    ]
    answering = {gpu.uuid for gpu in found}
    taken = {gpu.index for gpu in found}
    for gpu in before:
        if gpu.uuid in answering or gpu.uuid not in kept:
            continue
        number = gpu.index  # another GPU may have this index now
        while number in taken:
            number += 1
        taken.add(number)
        found.append(gpu._replace(index=number, healthy=False, slots=slots))
    limited = "max_inst" in RULES[mode]
    return tuple(
        _subtract_held(gpu, held.get(gpu.uuid, NonPodUsage()), limited=limited) for gpu in found
    )


def _subtract_held(gpu: OfferedGpu, held: NonPodUsage, *, limited: bool) -> OfferedGpu:
    """Return the GPU with what others hold of it; slots count only if the mode limits them."""
    return gpu._replace(
        held=min(gpu.units, gpu.units_of(held.mib)),
        held_slots=min(gpu.slots, held.weights) * limited,
    )


def compute_node_resources(
    mode: str,
    gpus: Collection[OfferedGpu],
    names: Mapping[str, str],
    seen: Iterable[DriverGpu] = (),
) -> NodeResources:
    """Return the entries for a node with these GPUs.

    The resources include lost GPUs and what others hold, because a kubelet that restarts fails
    running pods that no longer fit into them. cgpu's scheduler reads the annotation instead, which
    shows what is lost or held.

    Args:
        mode: the mode in force on the node.
        gpus: the node's GPUs, at least one.
        names: product names of GPUs, by UUID.
        seen: the GPUs that answer, with the links between them.
    """
    first = min(gpus, key=lambda gpu: (gpu.mib, gpu.index))  # no GPU has less than the label says
    labels = {GPU_MEMORY: f"{first.mib}MiB", GPU_COUNT: str(len(gpus))}
    name = _NO_LABEL.sub("-", names.get(first.uuid, ""))[:_LONGEST_LABEL].strip("._-")
    if name:
        labels[GPU_NAME] = name
    resources = {MEMORY: sum(gpu.units for gpu in gpus)}
    if mode == CORE_MEM:
        resources[CORES] = sum(gpu.cores for gpu in gpus)
    elif mode == TOPOLOGY:
        resources = {WHOLE_GPU: len(gpus)}
    answering = {gpu.index for gpu in gpus if gpu.healthy}
    links = {
        (gpu.index, other): link
        for gpu in seen
        for other, link in gpu.links.items()
        if {gpu.index, other} <= answering
    }
    facts = write_facts(mode, gpus, links=arrange_links([gpu.index for gpu in gpus], links))
    return NodeResources({FACTS: facts}, labels, resources)


def metadata_patch(node: Json, wanted: NodeResources) -> dict[str, Any]:
    """Return the merge patch that sets labels and annotations to ``wanted``; {} if none is needed.

    The agent writes labels and annotation together. Labels without the annotation are not the
    agent's, and stay if ``wanted`` is empty.
    """
    meta = get_member(node, "metadata", dict)
    notes = get_strings(meta, "annotations")
    ours = NODE_LABELS if wanted.annotations or FACTS in notes else ()
    changes = {
        "annotations": _diff_values(notes, wanted.annotations, (FACTS,)),
        "labels": _diff_values(get_strings(meta, "labels"), wanted.labels, ours),
    }
    changed = {name: value for name, value in changes.items() if value}
    return {"metadata": changed} if changed else {}


def withheld_patch(node: Json, reason: str) -> dict[str, Any]:
    """Return the merge patch that keeps new pods off the node; {} if none is needed or possible.

    The GPUs stay in the annotation, with ``reason``.
    """
    text = get_strings(get_member(node, "metadata", dict), "annotations").get(FACTS, "")
    try:
        new = write_facts(*read_facts(text)._replace(withheld=reason))
    except FactsError:
        return {}
    return {"metadata": {"annotations": {FACTS: new}}} if new != text else {}


def status_patch(node: Json, wanted: NodeResources, *, ours: bool = False) -> dict[str, Any]:
    """Return the merge patch for the status's capacity and allocatable; {} if none is needed.

    Args:
        node: the node's object.
        wanted: the resources that it should offer.
        ours: whether the resources in the status are the agent's, even if the annotation is missing
            because it is written after them.
    """
    status = get_member(node, "status", dict)
    ours = ours or FACTS in get_strings(get_member(node, "metadata", dict), "annotations")
    names = NODE_RESOURCES if wanted.resources or ours else ()
    changes = {}
    for part in ("capacity", "allocatable"):
        has = {
            name: value if parse_quantity(value) is None else str(parse_quantity(value))
            for name, value in get_member(status, part, dict).items()
        }
        wants = {name: str(value) for name, value in wanted.resources.items()}
        changes[part] = _diff_values(has, wants, names)
    changed = {name: value for name, value in changes.items() if value}
    return {"status": changed} if changed else {}


def _diff_values(
    has: Mapping[str, str], wants: Mapping[str, str], names: Iterable[str]
) -> dict[str, str | None]:
    return {name: wants.get(name) for name in names if has.get(name) != wants.get(name)}
