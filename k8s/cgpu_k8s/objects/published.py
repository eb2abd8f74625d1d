"""Reads the shares that two generations of published tools write on pods, by index of the GPU.

cgpu's nodes do not follow these annotations. ``kubectl inspect cgpu`` reads them for pods that
other tools placed, and for pods on nodes whose GPUs no agent has described.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

from cgpu_k8s.names import CORE_PERCENTAGE, CORES, FRAMEWORK_ALLOCATION, MEM_IDX, MEMORY
from cgpu_k8s.objects.fields import get_member, get_objects, get_strings
from cgpu_k8s.objects.pod_request import compute_pod_part
from cgpu_k8s.objects.quantities import parse_quantity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cgpu_k8s.objects.fields import Json
    from cgpu_k8s.objects.pods import Pod

_INDEX = re.compile(r"[0-9]{1,3}")
_MOST = 1 << 40
_NOTES = (FRAMEWORK_ALLOCATION, CORE_PERCENTAGE, MEM_IDX)


class Share(NamedTuple):
    """A share of one or more GPUs: units of memory, and hundredths of a GPU's time."""

    units: int = 0
    cores: int = 0


def sum_shares(shares: Iterable[Share]) -> Share:
    """Return the sum of all shares."""
    units, cores = 0, 0
    for share in shares:
        units, cores = units + share.units, cores + share.cores
    return Share(units, cores)


def read_asked_share(pod: Json, found: Pod) -> Share:
    """Return the share that a pod asks for, over all its GPUs, even if no GPU could satisfy it.

    Args:
        pod: the pod's object.
        found: the same pod, as ``read_pod`` returns it.
    """
    if found.request:
        part = compute_pod_part(found.request)
        return Share(part.units * found.gpus, part.cores * found.gpus)
    containers = get_objects(get_member(pod, "spec", dict), "containers")
    limits = [
        get_member(get_member(each, "resources", dict), "limits", dict) for each in containers
    ]
    return Share(
        *(
            sum(_to_amount(parse_quantity(each.get(name))) for each in limits)
            for name in (MEMORY, CORES)
        )
    )


def published_notes(pod: Json) -> dict[str, str]:
    """Return the annotations of a pod's object that published tools read."""
    notes = get_strings(get_member(pod, "metadata", dict), "annotations")
    return {name: notes[name] for name in _NOTES if name in notes}


def read_published(notes: Mapping[str, str], wanted: Share) -> dict[int, Share]:
    """Return a pod's share of each GPU, by the GPU's index; empty if the annotations have none.

    Args:
        notes: the pod's annotations.
        wanted: the share that the pod asks for, over all its GPUs. It is divided equally if the
            annotations are those of the older generation, which name only the GPUs.
    """
    units = _sum_by_index(notes.get(FRAMEWORK_ALLOCATION, ""))
    if units:
        cores = _sum_by_index(notes.get(CORE_PERCENTAGE, ""))
        return {index: Share(units[index], cores.get(index, 0)) for index in units}
    listed = notes.get(MEM_IDX, "").split(",")
    if not all(map(_INDEX.fullmatch, listed)):
        return {}
    each = Share(wanted.units // len(listed), wanted.cores // len(listed))
    return dict.fromkeys(map(int, listed), each)


def _sum_by_index(text: str) -> dict[int, int]:
    """Sum ``{"<container>":{"<GPU>":<amount>}}`` by GPU; return {} for any other text."""
    try:
        content = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    sums: dict[int, int] = {}
    for parts in content.values() if isinstance(content, dict) else [None]:
        if not isinstance(parts, dict) or not all(map(_INDEX.fullmatch, parts)):
            return {}
        for index, amount in parts.items():
            sums[int(index)] = sums.get(int(index), 0) + _to_amount(amount)
    return sums


def _to_amount(value: object) -> int:
    """Return ``value`` if it is a valid amount, else 0."""
    return value if type(value) is int and 0 < value < _MOST else 0
