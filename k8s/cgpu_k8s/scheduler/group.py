"""The state of one group of pods: what its pods have asked for, and what is reserved for them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cgpu_k8s.objects.groups import GroupName
    from cgpu_k8s.scheduler.gangs import Ask, Spot

INCOMPLETE, WAITING, RESERVED, PLACED = "incomplete", "waiting", "reserved", "placed"


class GroupPod(NamedTuple):
    """A pod of a group.

    Attributes:
        uid: its UID.
        group: its group.
        created: its creation time, as text that sorts by time.
        ask: the GPUs that it asks for.
        node: the node that it is bound to, or that its binding was sent for; "" if none.
    """

    uid: str
    group: GroupName
    created: str
    ask: Ask
    node: str = ""


class Rendezvous:
    """The bindings of a group's pods that wait for each other.

    Attributes:
        came: the UIDs of the pods whose bindings wait.
        answer: None while they wait; "" once those of all pods that the group needs have come; else
            a sentence on why none of them may be sent.
        over: is set once there is an answer.
    """

    def __init__(self) -> None:
        self.came: set[str] = set()
        self.answer: str | None = None
        self.over = asyncio.Event()

    def end(self, answer: str) -> None:
        """Give the answer, unless there is one already."""
        if self.answer is None:
            self.answer = answer
            self.over.set()


class QueuePlace(NamedTuple):
    """The place of a group in the queues for room.

    Attributes:
        nodes: the nodes that its waiting pods allow. Each set of nodes has its own queue.
        order: the creation time and UID of its oldest pod, by which queues are sorted, and the
            group's key.
    """

    nodes: frozenset[str]
    order: tuple[str, str, tuple[str, str]]


class PodGroup:
    """The pods of a group, the nodes that their scheduler allows, and their reservations."""

    def __init__(self) -> None:
        self.pods: dict[str, GroupPod] = {}
        self.asked: dict[str, frozenset[str]] = {}
        self.heard: dict[str, float] = {}  # when each pod has last asked
        self.rendezvous = Rendezvous()
        self.spots: dict[str, Spot] = {}
        self.since = 0.0
        self.refusal: tuple[int, str] | None = None  # of the last search: count_freed(), why
        self.queued: QueuePlace | None = None
        self.barred: dict[str, tuple[float, str]] = {}  # until when a pod asks in vain, and why

    def list_bound(self) -> list[GroupPod]:
        """Return the pods that are bound, or whose binding was sent."""
        return [pod for pod in self.pods.values() if pod.node]

    def end_if_complete(self) -> None:
        """Let the bindings go on that wait, if those of all pods that the group needs have come."""
        if self.rendezvous.came and self.count_absent() <= 0:
            self.rendezvous.end("")

    def count_absent(self) -> int:
        """Return how many pods the group needs beside those bound and those whose bindings wait."""
        size = next(iter(self.pods.values())).group.size
        return size - len(self.list_bound()) - len(self.rendezvous.came)

    def list_unplaced(self) -> list[GroupPod]:
        """Return the pods that ask for a node and have no reservation, the oldest first."""
        found = [self.pods[uid] for uid in self.asked if uid not in self.spots]
        return sorted(found, key=lambda pod: (pod.created, pod.uid))

    def find_place(self) -> QueuePlace | None:
        """Return the group's place in the queues for room, or None if it does not wait."""
        unplaced = self.list_unplaced()
        if not unplaced or self.explain_missing():
            return None
        nodes, *others = {self.asked[pod.uid] for pod in unplaced}
        nodes = nodes.union(*others) if others else nodes  # one set is not copied
        first = min((pod.created, pod.uid) for pod in self.pods.values())
        return QueuePlace(nodes, (*first, unplaced[0].group[:2]))

    def find_state(self) -> str:
        """Return INCOMPLETE, WAITING, RESERVED or PLACED."""
        size = next(iter(self.pods.values())).group.size
        if len(self.list_bound()) >= size:
            return PLACED
        return INCOMPLETE if self.explain_missing() else RESERVED if self.spots else WAITING

    def explain_missing(self) -> str:
        """Return why the group is incomplete; "" if enough of its pods have asked."""
        sizes = sorted({pod.group.size for pod in self.pods.values()})
        name = next(iter(self.pods.values())).group
        if len(sizes) > 1:
            given = " and ".join(map(str, sizes))
            return f"group {name.name}: its pods name {given} as its size: expected one number"
        ready = len(self.list_bound()) + len(self.asked)
        if ready < name.size:
            why = "".join(f"; {each}" for _, each in self.barred.values())
            return (
                f"group {name.name}: {len(self.pods)} of its {name.size} pods are there,"
                f" {ready} of them ask for a node: all or none are placed{why}"
            )
        return ""
