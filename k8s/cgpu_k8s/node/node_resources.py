"""The labels, annotation and resources that a node offers, computed from its GPUs: pure."""

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
    Fact,
    FactsError,
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

SLOTS = 20  # containers on a GPU in a mode that sets no limit of its own
_LONGEST_LABEL = 63
_NO_LABEL = re.compile(r"[^A-Za-z0-9._-]+")


class DriverGpu(NamedTuple):
    """A GPU of the driver's.

    Attributes:
        uuid: empty if it does not answer, and the driver does not name it any more.
        index: the driver's number of it.
        name: the product's; empty if it does not answer.
        mib: its memory in MiB; 0 if it does not answer.
        lost: why it does not answer, and what to do; empty: it answers.
        links: to the GPUs behind it, by the driver's numbers of them.
        in_mig_mode: whether it is divided by MIG.
    """

    uuid: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    name: str
    mib: int
    lost: str = ""
    links: Mapping[int, GpuLink] = {}
    in_mig_mode: bool = False


class NodeResources(NamedTuple):
    """The entries of a node's object about its GPUs; empty if it offers nothing.

    Attributes:
        annotations: ``cgpu/gpus``.
        labels: those that published tools read.
        resources: the amount of each.
    """

    annotations: Mapping[str, str]
    labels: Mapping[str, str]
    resources: Mapping[str, int]


NOTHING = NodeResources({}, {}, {})


def read_known_gpus(node: Json) -> tuple[Fact, ...]:
    """Return the GPUs that the node's annotation names; none if it is missing or not readable."""
    notes = get_strings(get_member(node, "metadata", dict), "annotations")
    try:
        return read_facts(notes.get(FACTS, "")).gpus
    except FactsError:
        return ()


def compute_facts(
    mode: str,
    seen: Iterable[DriverGpu],
    before: Iterable[Fact],
    kept: Collection[str],
    held: Mapping[str, NonPodUsage],
) -> tuple[Fact, ...]:
    """Return the node's GPUs, also lost ones, so that the cache keeps the pods on them.

    A lost GPU gets no new pods.

    Args:
        mode: in force on the node.
        seen: the GPUs that answer; indices may have changed. One below 1 GiB offers nothing.
        before: the GPUs that were known.
        kept: UUIDs of GPUs that stay if they do not answer.
        held: the memory and weights that others than pods were promised, by UUID.
    """
    slots = RULES[mode].get("max_inst", SLOTS)
    found = [Fact(gpu.uuid, gpu.index, gpu.mib, slots=slots) for gpu in seen if gpu.mib >= UNIT_MIB]
    answering = {gpu.uuid for gpu in found}
    taken = {gpu.index for gpu in found}
    for gpu in before:
        if gpu.uuid in answering or gpu.uuid not in kept:
            continue
        number = gpu.index  # another GPU may have it since
        while number in taken:
            number += 1
        taken.add(number)
        found.append(gpu._replace(index=number, healthy=False, slots=slots))
    limited = "max_inst" in RULES[mode]
    return tuple(
        _subtract_held(gpu, held.get(gpu.uuid, NonPodUsage()), limited=limited) for gpu in found
    )


def _subtract_held(gpu: Fact, held: NonPodUsage, *, limited: bool) -> Fact:
    """The GPU less what others hold; ``limited``: its slots are limited, so theirs count too."""
    return gpu._replace(
        held=min(gpu.units, gpu.units_of(held.mib)),
        held_slots=min(gpu.slots, held.weights) * limited,
    )


def compute_node_resources(
    mode: str, gpus: Collection[Fact], names: Mapping[str, str], seen: Iterable[DriverGpu] = ()
) -> NodeResources:
    """Return the entries in the object of a node with these GPUs.

    Resources count lost GPUs and what others hold, too: a kubelet that starts again adds up its
    running pods against them, and would fail those that no longer fit. Schedulers read the
    annotation, which has both.

    Args:
        mode: in force on the node.
        gpus: of the node, at least one.
        names: of GPUs, by UUID.
        seen: the GPUs that answer, with the links between them.
    """
    first = min(gpus, key=lambda gpu: (gpu.mib, gpu.index))  # no pod gets less than it hopes for
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
    """Return the merge patch that makes labels and annotations as ``wanted``; empty if they are.

    Labels without the annotation, which is written with them, are somebody else's.
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
    """The merge patch by which a node keeps its GPUs and gets no more pods; empty if it does."""
    text = get_strings(get_member(node, "metadata", dict), "annotations").get(FACTS, "")
    try:
        new = write_facts(*read_facts(text)._replace(withheld=reason))
    except FactsError:
        return {}
    return {"metadata": {"annotations": {FACTS: new}}} if new != text else {}


def status_patch(node: Json, wanted: NodeResources, *, ours: bool = False) -> dict[str, Any]:
    """Return the merge patch of the resources in the node's status: capacity and allocatable.

    Args:
        node: its object.
        wanted: the resources that it should offer.
        ours: whether its resources are an agent's even without the annotation, which is written
            after them.
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
