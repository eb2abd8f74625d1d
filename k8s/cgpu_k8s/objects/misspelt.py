"""Names on pods that are meant to be ours, and are not: nothing follows them, and nobody says so.

Only what is near to a name of ours counts. What published schedulers and plugins use is not:
``aliyun.com/gpu``, ``aliyun.com/ppu``, ``aliyun.com/gpu0-util`` and the like.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cgpu_k8s.names import CORES, COUNT, MEMORY
from cgpu_k8s.objects.fields import member, objects, strings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cgpu_k8s.objects.fields import Json

PREFIX = "aliyun.com/"
OURS = (MEMORY, CORES, COUNT)
_START = r"(?i)^aliyun[.]com/[cv]?(gpus?|gup|pgu|gp)[-_.]*"
_UNIT = "([-_.]?[gm]i?b)?"
# What is meant, by the pattern of the names that are near to it, in the syntax of RE2 too. Names of
# ours match as well.
NEAR = {
    f"{_START}([me]{{2,4}}|m[a-z]m|me[a-z]|mem[a-z]{{1,5}}){_UNIT}$": (
        f"{MEMORY} in a container's limits"
    ),
    f"{_START}([core]{{3,5}}s?([-_.]+(p[a-z]*)?)?|(cores?)?perc[a-z]*)$": (
        f"{CORES} in a container's limits"
    ),
    f"{_START}([count]{{4,6}}s?|cnts?|num(ber)?s?)$": f"the pod's label {COUNT}",
}


def misspelt(pod: Json) -> str:
    """Which resource, label or annotation of a pod is near to a name of ours, one sentence; "".

    Raises:
        ObjectError: it is no pod.
    """
    return next(_found(pod), "")


def _found(pod: Json) -> Iterator[str]:
    meta, spec = member(pod, "metadata", dict), member(pod, "spec", dict)
    for container in (*objects(spec, "initContainers"), *objects(spec, "containers")):
        limits = member(member(container, "resources", dict), "limits", dict)
        where = f"container {member(container, 'name', str)}: "
        yield from (f"{where}{name}: {_no('resource', meant)}" for name, meant in _near(limits))
    for kind in ("label", "annotation"):
        noted = strings(meta, f"{kind}s")
        yield from (f"{kind} {name}: {_no(kind, meant)}" for name, meant in _near(noted))


def _near(named: Json) -> Iterator[tuple[str, str]]:
    """The names that are near to one of ours, and what is meant."""
    for name in named:
        if name.startswith(PREFIX) and name not in OURS:
            for pattern, meant in NEAR.items():
                if re.search(pattern, name):
                    yield name, meant
                    break


def _no(kind: str, meant: str) -> str:
    return f"there is no such {kind}: did you mean {meant}?"
