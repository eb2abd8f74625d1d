"""Finds names on pods that misspell cgpu's resources and labels, and so have no effect.

The patterns do not match names that others use, such as ``aliyun.com/ppu`` and
``aliyun.com/gpu0-util``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cgpu_k8s.names import CORES, COUNT, MEMORY, WHOLE_GPU
from cgpu_k8s.objects.fields import get_member, get_objects, get_strings
from cgpu_k8s.objects.pods import read_pod

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cgpu_k8s.objects.fields import Json

PREFIX = "aliyun.com/"
OURS = (MEMORY, CORES, COUNT, WHOLE_GPU)
_START = r"(?i)^aliyun[.]com/[cv]?(gpus?|gup|pgu|gp)[-_.]*"
_CORE, _PERCENT = "(cores?|croe|coer|ocre|cor|cre)", "(p(er|re)c[entag]*|pct)"
# Patterns of misspellings, and the name that is meant. CEL uses the same patterns, so they must be
# valid in RE2 too. They also match the correct names.
COUNTED = f"{_START}(counts?|cou?tn|cuont|conut|cont|cout|coun|cnts?|num(ber)?s?)$"
NEAR = {
    f"{_START}(mem(s|ory|ry|roy)?|mme|men|emm?)([-_.]?[gm]i?b)?$": (
        f"{MEMORY} in a container's limits"
    ),
    f"{_START}({_CORE}|({_CORE}[-_.]*)?{_PERCENT})$": f"{CORES} in a container's limits",
    COUNTED: f"the pod's label {COUNT}",
    r"(?i)^aliyun[.]com/(gpus?|gup|pgu)$": f"{WHOLE_GPU} in a container's limits",
}


def find_misspelt(pod: Json) -> str:
    """Return a sentence about a misspelt resource in the limits of a pod's containers, or "".

    Raises:
        ObjectError: the pod is malformed.
    """
    spec = get_member(pod, "spec", dict)
    for container in (*get_objects(spec, "initContainers"), *get_objects(spec, "containers")):
        limits = get_member(get_member(container, "resources", dict), "limits", dict)
        for name, meant in _find_near(limits, NEAR):
            suggestion = _suggest_name("resource", name, meant)
            return f"container {get_member(container, 'name', str)}: {suggestion}"
    return ""


def find_miscounted(pod: Json) -> str:
    """Return a sentence about a label or annotation that misspells ``aliyun.com/gpu-count``, or "".

    Pods that ask for no GPU are not checked.

    Raises:
        ObjectError: the pod is malformed.
    """
    if not read_pod(pod).asks_for_gpu:
        return ""
    meta = get_member(pod, "metadata", dict)
    for kind in ("label", "annotation"):
        for name, meant in _find_near(get_strings(meta, f"{kind}s"), (COUNTED,)):
            return f"{kind} {_suggest_name(kind, name, meant)}"
    return ""


def _find_near(named: Json, patterns: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each misspelt name with the name that is meant."""
    for name in named:
        if name.startswith(PREFIX) and name not in OURS:
            for pattern in patterns:
                if re.search(pattern, name):
                    yield name, NEAR[pattern]
                    break


def _suggest_name(kind: str, name: str, meant: str) -> str:
    return f"{name}: there is no such {kind}: did you mean {meant}?"
