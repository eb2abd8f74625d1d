"""Reads the group that a pod's labels name, and the annotation that reserves room for the pod.

The annotation ``cgpu/reservation`` of a pod that is not bound yet is
``{"v":1,"node":"gpu-a","gpus":["GPU-..."],"at":1795471200,"written":1795471200}``. Writing it wakes
the pod's scheduler. A new leader restores reservations from it.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

from cgpu_env.errors import CgpuError, printable

if TYPE_CHECKING:
    from collections.abc import Mapping

# Pairs of pod labels: the name of the group, and its number of pods.
TOPOLOGY_NAME, TOPOLOGY_SIZE = "gpu-topology", "gpu-topology-replica"
POD_GROUP_NAME = "pod-group.scheduling.sigs.k8s.io/name"
POD_GROUP_SIZE = "pod-group.scheduling.sigs.k8s.io/min-available"
LABELS = ((TOPOLOGY_NAME, TOPOLOGY_SIZE), (POD_GROUP_NAME, POD_GROUP_SIZE))
VERSION = 1
_LATEST = 1 << 40  # seconds since 1970
SIZE = "[1-9][0-9]{0,3}"  # a regular expression
TWO_GROUPS = f"labels {TOPOLOGY_NAME} and {POD_GROUP_NAME}: expected one group"


class GroupError(CgpuError):
    """A pod's labels do not name a valid group. The message is one sentence."""


class GroupName(NamedTuple):
    """The group of a pod, and the number of pods that it needs according to this pod's label."""

    namespace: str
    name: str
    size: int


def read_group(namespace: str, labels: Mapping[str, str]) -> GroupName | None:
    """Return the group that a pod's labels name, or None if they name none.

    Raises:
        GroupError: a label of a pair is missing or invalid, or two pairs name different groups.
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
        node: the name of the node.
        gpus: the UUIDs of the GPUs.
        at: when the room was reserved, in seconds since 1970.
        written: when the annotation was written, in seconds since 1970. It makes each write a
            change of the pod, because only a change wakes the pod's scheduler.
    """

    node: str
    gpus: tuple[str, ...]
    at: int
    written: int = 0


def write_reservation(reservation: Reservation) -> str:
    """Return the text of the annotation ``cgpu/reservation``."""
    return json.dumps({"v": VERSION, **reservation._asdict()}, separators=(",", ":"))


def read_reservation(text: str) -> Reservation | None:
    """Return the reservation without ``written``; None if the text is not one of this version."""
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
