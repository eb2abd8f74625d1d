"""Groups of pods, by their labels, that all get room or none does.

A group waits until all of its pods have asked; then room for all of them is reserved at once, or
for none. Groups that have all their pods get room in the order of their first pods. A group that
does not fit reserves nothing, and so stops no other. Reservations end after ``HOLD_SECONDS``,
unless a pod of the group was bound by then.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from cgpu_env.errors import CgpuError, printable
from cgpu_k8s.scheduler.gangs import Member, Spot, place_members

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from cgpu_k8s.scheduler.gangs import Ask, Room

# Labels of a pod, in pairs: the group's name, and how many pods it has.
TOPOLOGY_NAME, TOPOLOGY_SIZE = "gpu-topology", "gpu-topology-replica"
POD_GROUP_NAME = "pod-group.scheduling.sigs.k8s.io/name"
POD_GROUP_SIZE = "pod-group.scheduling.sigs.k8s.io/min-available"
LABELS = ((TOPOLOGY_NAME, TOPOLOGY_SIZE), (POD_GROUP_NAME, POD_GROUP_SIZE))
HOLD_SECONDS = 120.0
_SIZE = re.compile(r"[1-9][0-9]{0,3}")


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
        if not _SIZE.fullmatch(labels[size]):
            value = printable(labels[size])
            raise GroupError(f"label {size}={value}: expected a whole number from 1 to 9999")
        found.add(GroupName(namespace, labels[name], int(labels[size])))
    if len(found) > 1:
        raise GroupError(f"labels {TOPOLOGY_NAME} and {POD_GROUP_NAME}: expected one group")
    return found.pop() if found else None


class GroupPod(NamedTuple):
    """A pod of a group.

    Attributes:
        uid: its UID.
        group: its group.
        created: the time of its creation, as text that sorts by time.
        ask: the GPUs that it asks for.
        node: the node that it is bound to, or its binding was sent for; "": none.
    """

    uid: str
    group: GroupName
    created: str
    ask: Ask
    node: str = ""


class _Group:
    """The pods of one group, which of them have asked for nodes, and what is reserved."""

    def __init__(self) -> None:
        self.pods: dict[str, GroupPod] = {}
        self.asked: dict[str, frozenset[str]] = {}
        self.spots: dict[str, Spot] = {}
        self.since = 0.0

    def list_bound(self) -> list[GroupPod]:
        return [pod for pod in self.pods.values() if pod.node]

    def list_unplaced(self) -> list[GroupPod]:
        """Return the pods that have asked and have nothing reserved, the first one first."""
        found = [self.pods[uid] for uid in self.asked if uid not in self.spots]
        return sorted(found, key=lambda pod: (pod.created, pod.uid))

    def explain_missing(self) -> str:
        """Return why the group cannot be placed yet; "": all its pods have asked."""
        sizes = sorted({pod.group.size for pod in self.pods.values()})
        name = next(iter(self.pods.values())).group
        if len(sizes) > 1:
            given = " and ".join(map(str, sizes))
            return f"group {name.name}: its pods name {given} as its size: expected one number"
        ready = len(self.list_bound()) + len(self.asked)
        if ready < name.size:
            return (
                f"group {name.name}: {len(self.pods)} of its {name.size} pods are there,"
                f" {ready} of them ask for a node: all or none are placed"
            )
        return ""


class Groups:
    """All groups of a cluster; the owner of the nodes counts their reservations.

    Args:
        find_rooms: returns the nodes with what is free on them now, without reservations.
        reserve: counts the share that a pod will have.
        release: counts it no longer.
    """

    def __init__(
        self,
        find_rooms: Callable[[], Iterable[Room]],
        reserve: Callable[[str, Spot], None],
        release: Callable[[str], None],
    ) -> None:
        self._find_rooms = find_rooms
        self._reserve = reserve
        self._release = release
        self._groups: dict[tuple[str, str], _Group] = {}
        self._keys: dict[str, tuple[str, str]] = {}

    def update_pod(self, pod: GroupPod) -> None:
        """Take over a pod of a group that was added, modified or bound."""
        key = self._keys.setdefault(pod.uid, pod.group[:2])
        group = self._groups.setdefault(key, _Group())
        group.pods[pod.uid] = pod
        if pod.node:
            group.asked.pop(pod.uid, None)
            group.spots.pop(pod.uid, None)

    def remove_pod(self, uid: str) -> None:
        """Remove a pod that is gone; a group without bound pods then loses its reservations."""
        key = self._keys.pop(uid, None)
        if key is None:
            return
        group = self._groups[key]
        for kept in (group.pods, group.asked):
            kept.pop(uid, None)
        if group.spots.pop(uid, None):
            self._release(uid)
        if not group.list_bound():
            self._release_group(group)
        if not group.pods:
            del self._groups[key]

    def find_spot(self, uid: str, nodes: Iterable[str], now: float) -> Spot | str:
        """Find the node and the GPUs of a pod whose scheduler allows these nodes.

        Returns:
            The spot reserved for it, as for all pods of its group; or why there is none, in one
                sentence.
        """
        group = self._groups[self._keys[uid]]
        group.asked[uid] = frozenset(nodes)
        spot = group.spots.get(uid)
        if spot and spot.node in group.asked[uid]:
            return spot
        if spot:
            self._release_group(group)
        missing = group.explain_missing()
        if missing:
            return missing
        reason = ""
        for each in self._list_ready(until=group):
            reason = self._place_group(each, now)
        return group.spots.get(uid) or reason

    def expire(self, now: float) -> None:
        """Release reservations that are too old, of groups of which no pod is bound."""
        for group in self._groups.values():
            if group.spots and now - group.since > HOLD_SECONDS and not group.list_bound():
                self._release_group(group)
                group.asked.clear()

    def list_waiting(self) -> list[str]:
        """Return the pods that have room reserved, and whose schedulers have to ask again."""
        return [uid for group in self._groups.values() for uid in group.spots]

    def _list_ready(self, until: _Group) -> list[_Group]:
        """Return the groups that can get room and have none, in order, up to this one."""
        found = [
            group
            for group in self._groups.values()
            if group.list_unplaced() and not group.explain_missing()
        ]
        found.sort(key=lambda group: min((pod.created, pod.uid) for pod in group.pods.values()))
        return found[: found.index(until) + 1]

    def _place_group(self, group: _Group, now: float) -> str:
        bound, name = group.list_bound(), next(iter(group.pods.values())).group
        here = {pod.node for pod in bound} | {spot.node for spot in group.spots.values()}
        rooms = [room._replace(joined=room.node in here) for room in self._find_rooms()]
        waiting = group.list_unplaced()
        members = [Member(pod.uid, pod.ask, group.asked[pod.uid]) for pod in waiting]
        needed = max(1, name.size - len(bound) - len(group.spots))
        found = place_members(members, rooms)
        if isinstance(found, str) and needed < len(members):  # more than the group needs
            found = place_members(members[:needed], rooms)
        if isinstance(found, str):
            return f"group {name.name}: {found}"
        group.spots |= found
        group.since = now
        for uid, spot in found.items():
            self._reserve(uid, spot)
        return ""

    def _release_group(self, group: _Group) -> None:
        for uid in group.spots:
            self._release(uid)
        group.spots = {}
