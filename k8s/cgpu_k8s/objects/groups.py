"""The group that a pod is in by its labels, and the room that is reserved for it there.

The annotation ``cgpu/reservation`` of a pod that waits for its binding,
``{"v":1,"node":"gpu-a","gpus":["GPU-..."],"at":1795471200,"written":1795471200}``, wakes its
scheduler, and shows the next leader what the one before it had reserved. It is reserved since
``at``; both times are in seconds since 1970.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

from cgpu_env.errors import CgpuError, printable

if TYPE_CHECKING:
    from collections.abc import Mapping

# Labels of a pod, in pairs: the group's name, and how many pods it has.
TOPOLOGY_NAME, TOPOLOGY_SIZE = "gpu-topology", "gpu-topology-replica"
POD_GROUP_NAME = "pod-group.scheduling.sigs.k8s.io/name"
POD_GROUP_SIZE = "pod-group.scheduling.sigs.k8s.io/min-available"
LABELS = ((TOPOLOGY_NAME, TOPOLOGY_SIZE), (POD_GROUP_NAME, POD_GROUP_SIZE))
VERSION = 1
_LATEST = 1 << 40  # seconds since 1970
SIZE = "[1-9][0-9]{0,3}"  # a pattern
TWO_GROUPS = f"labels {TOPOLOGY_NAME} and {POD_GROUP_NAME}: expected one group"


class GroupError(CgpuError):
    """A pod's labels make no group; one sentence."""


class GroupName(NamedTuple):
    """The group of a pod, and how many pods it needs by this pod's label."""

    namespace: str
    name: str
    size: int


def read_group(namespace: str, labels: Mapping[str, str]) -> GroupName | None:
    """Return the group that a pod's labels make; None: it is in none.

    Raises:
        GroupError: a label is missing, is no number, or differs from another one.
    """
    found = set()
    for name, size in LABELS:
        if name not in labels and size not in labels:
            continue
        for label, other in ((name, size), (size, name)):
            if not labels.get(label):
                raise GroupError(f"label {other} without {label}: expected both")
        if not re.fullmatch(SIZE, labels[size]):
            value = printable(labels[size])
            raise GroupError(f"label {size}={value}: expected a whole number from 1 to 9999")
        found.add(GroupName(namespace, labels[name], int(labels[size])))
    if len(found) > 1:
        raise GroupError(TWO_GROUPS)
    return found.pop() if found else None


class Reservation(NamedTuple):
    """The room that is reserved for a pod.

    Attributes:
        node: its node.
        gpus: the UUIDs of its GPUs.
        at: since when it is reserved, in seconds since 1970.
        written: when this was written; only a change of the pod wakes its scheduler.
    """

    node: str
    gpus: tuple[str, ...]
    at: int
    written: int = 0


def write_reservation(reservation: Reservation) -> str:
    """Return the annotation of a pod for which room is reserved."""
    return json.dumps({"v": VERSION, **reservation._asdict()}, separators=(",", ":"))


def read_reservation(text: str) -> Reservation | None:
    """Read the annotation; None if it is missing, or not one of this version."""
    try:
        found = json.loads(text)
        if found["v"] != VERSION:
            return None
        at = int(found["at"])
        if not 0 <= at <= _LATEST:
            return None
        return Reservation(str(found["node"]), tuple(map(str, found["gpus"])), at)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
