"""Groups of pods, for which room is reserved as a whole or not at all.

A group is complete once as many of its pods have asked for a node as its size says. Then room is
reserved for all of them at once, or for none. Complete groups get room in the order of their oldest
pods. A group that does not fit reserves nothing, and so does not block other groups. Reservations
end after ``HOLD_SECONDS``. Bindings wait until those of all pods that the group needs have come.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import merge
from typing import TYPE_CHECKING

from cgpu_k8s.scheduler.gangs import Member, Spot
from cgpu_k8s.scheduler.group import (
    INCOMPLETE,
    PLACED,
    RESERVED,
    WAITING,
    GroupPod,
    PodGroup,
    QueuePlace,
    Rendezvous,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    FindSpots = Callable[[Sequence[Member], set[str], float], dict[str, Spot] | str]

HOLD_SECONDS = 120.0
_FREE = "what was reserved for the pod's group is free again"


class Groups:
    """All groups of a cluster. The caller keeps the nodes, and counts the reservations there.

    Args:
        find_spots: returns room for all given pods of a group, or a sentence on why there is none.
            It is given the pods, the nodes that have pods of the group already, and the time.
        reserve: is called to count the share of a pod.
        release: is called to count it no longer.
        count_freed: returns how often there may have been more room than before.

    Attributes:
        unwritten: the UIDs of pods whose reservations are not written to the API server yet.
    """

    def __init__(
        self,
        find_spots: FindSpots,
        reserve: Callable[[str, Spot], None],
        release: Callable[[str], None],
        count_freed: Callable[[], int],
    ) -> None:
        self._find_spots = find_spots
        self._reserve = reserve
        self._release = release
        self._count_freed = count_freed
        self._groups: dict[tuple[str, str], PodGroup] = {}
        self._keys: dict[str, tuple[str, str]] = {}
        self._queues: dict[frozenset[str], list[tuple[str, str, tuple[str, str]]]] = {}
        self.unwritten: set[str] = set()
        self._early: dict[str, tuple[frozenset[str], float]] = {}
        self._sets: dict[frozenset[str], frozenset[str]] = {}  # equal sets of nodes are kept once

    def update_pod(self, pod: GroupPod) -> None:
        """Add or update a pod of a group."""
        if self._keys.get(pod.uid, pod.group[:2]) != pod.group[:2]:
            self.remove_pod(pod.uid)  # its labels have changed
        key = self._keys[pod.uid] = pod.group[:2]
        group = self._groups.setdefault(key, PodGroup())
        group.pods[pod.uid] = pod
        group.refusal = None
        if pod.node:
            group.asked.pop(pod.uid, None)
            group.spots.pop(pod.uid, None)
            self.unwritten.discard(pod.uid)
            group.rendezvous.came.discard(pod.uid)
            group.end_if_complete()
        self._queue_group(group)
        if not pod.node and pod.uid in self._early:
            self.find_spot(pod.uid, *self._early.pop(pod.uid))

    def remove_pod(self, uid: str) -> None:
        """Remove a pod. If no pod of its group is bound, the group loses its reservations.

        If its binding waits, the bindings that wait with it are not sent either.
        """
        key = self._keys.pop(uid, None)
        if key is None:
            return
        group = self._groups[key]
        if uid in group.rendezvous.came:
            group.rendezvous.end(f"group {key[1]}: a pod that was to be bound with it is gone")
        for kept in (group.pods, group.asked, group.heard, group.barred):
            kept.pop(uid, None)
        self._release_spot(group, uid)
        if not group.list_bound():
            self._release_group(group)
        self._queue_group(group)
        if not group.pods:
            del self._groups[key]

    def find_spot(self, uid: str, nodes: Iterable[str], now: float) -> Spot | str:
        """Find the node and the GPUs of a pod whose scheduler allows these nodes.

        The scheduler may ask about a pod before ``update_pod`` has added it. The call then takes
        effect once the pod is added.

        Returns:
            The spot that is reserved for the pod, or a sentence on why there is none.
        """
        allowed = frozenset(nodes)
        allowed = self._sets.setdefault(allowed, allowed)
        if uid not in self._keys:
            self._early[uid] = (allowed, now)
            return "the pod is not known yet"
        group = self._groups[self._keys[uid]]
        until, why = group.barred.get(uid, (now, ""))
        if now < until:
            return why
        group.barred.pop(uid, None)
        group.heard[uid] = now
        if group.asked.get(uid) != allowed:
            group.asked[uid] = allowed
            group.refusal = None
        spot = group.spots.get(uid)
        if spot and spot.node in group.asked[uid]:
            return spot
        if spot:
            self._release_group(group)
        self._queue_group(group)
        missing = group.explain_missing()
        if missing:
            return missing
        self._place_in_turn(group, now)
        return group.spots.get(uid) or (group.refusal[1] if group.refusal else "")

    def bar_pod(self, uid: str, why: str, now: float) -> None:
        """Let a pod ask in vain for HOLD_SECONDS, because what is reserved cannot be written to it.

        If no pod of its group is bound, or the group needs this one, all reservations end.
        """
        if uid not in self._keys:
            return
        group = self._groups[self._keys[uid]]
        group.barred[uid] = now + HOLD_SECONDS, why
        group.asked.pop(uid, None)
        missing = group.explain_missing()
        if missing or not group.list_bound():
            self._release_group(group, missing or why)
        else:
            self._release_spot(group, uid)
        self._queue_group(group)

    def arrive(self, uid: str) -> Rendezvous:
        """Let a pod's binding wait for those of the other pods that its group needs."""
        group = self._groups[self._keys[uid]]
        if group.rendezvous.answer is not None:
            group.rendezvous = Rendezvous()
        group.rendezvous.came.add(uid)
        group.end_if_complete()
        return group.rendezvous

    def give_up(self, uid: str) -> None:
        """Let no binding wait any longer in a pod's group, and release its reservations."""
        group = self._groups[self._keys[uid]]
        name, absent = group.pods[uid].group, group.count_absent()
        group.rendezvous.end(
            f"group {name.name}: {absent} of its {name.size} pods did not come in time to the nodes"
            " that are reserved for them: all or none are placed"
        )
        self._release_group(group)
        group.asked.clear()
        self._queue_group(group)

    def get_since(self, uid: str) -> float:
        """Return when the room of a pod's group was reserved, in monotonic seconds."""
        return self._groups[self._keys[uid]].since

    def has_pod(self, uid: str) -> bool:
        """Return whether a pod is in a group."""
        return uid in self._keys

    def has_bound(self, uid: str) -> bool:
        """Return whether any pod of this pod's group is bound, or its binding was sent."""
        return bool(self._groups[self._keys[uid]].list_bound())

    def count_states(self) -> dict[str, int]:
        """Return how many groups are in each state."""
        found = dict.fromkeys((INCOMPLETE, WAITING, RESERVED, PLACED), 0)
        for group in self._groups.values():
            found[group.find_state()] += 1
        return found

    def expire(self, now: float) -> None:
        """Release reservations older than HOLD_SECONDS.

        If a pod of the group is bound, each other pod keeps its own while it asks in that time.
        """
        early = self._early.items()
        self._early = {uid: each for uid, each in early if now - each[1] <= HOLD_SECONDS}
        self._sets = {nodes: nodes for nodes, _ in self._early.values()}
        self._sets |= {
            each: each for group in self._groups.values() for each in group.asked.values()
        }
        for group in self._groups.values():
            if not group.spots or now - group.since <= HOLD_SECONDS:
                continue
            if not group.list_bound():
                self._release_group(group)
                group.asked.clear()
            for uid in list(group.spots):
                if now - group.heard.setdefault(uid, now) > HOLD_SECONDS:
                    self._release_spot(group, uid)
                    group.asked.pop(uid, None)
            self._queue_group(group)

    def restore(self, spots: Mapping[str, tuple[Spot, float]]) -> None:
        """Restore reservations: the spot of each pod and when it was reserved, by UID.

        A group with fewer reservations than its size loses them, unless a pod of it is bound.
        """
        self.unwritten = set(spots)  # writing them makes the schedulers ask again
        for group in self._groups.values():
            found = {uid: spots[uid] for uid in group.pods if uid in spots}
            group.spots = {uid: spot for uid, (spot, _) in found.items()}
            group.since = min((since for _, since in found.values()), default=0.0)
            size = next(iter(group.pods.values())).group.size
            if len(group.spots) < size and not group.list_bound():
                self._release_group(group)
            self._queue_group(group)

    def _queue_group(self, group: PodGroup) -> None:
        """Move a group that has changed to its place in the queues, or remove it from them."""
        place, before = group.find_place(), group.queued
        if place == before:
            return
        if before:
            queue = self._queues[before.nodes]
            del queue[bisect_left(queue, before.order)]
            if not queue:
                del self._queues[before.nodes]
        if place:
            insort(self._queues.setdefault(place.nodes, []), place.order)
        group.queued = place

    def _list_older(self, place: QueuePlace) -> list[PodGroup]:
        """Return the groups before this place that wait for some of its nodes, in order."""
        older = [
            queue[: bisect_left(queue, place.order)]
            for nodes, queue in self._queues.items()
            if not nodes.isdisjoint(place.nodes)
        ]
        return [self._groups[key] for _, _, key in merge(*older)]

    def _place_in_turn(self, group: PodGroup, now: float) -> None:
        """Reserve room for a waiting group, but first for older groups that want the same room."""
        found = self._find_room(group, now)
        if not found or not group.queued:
            return
        for older in self._list_older(group.queued):
            if room := self._find_room(older, now):
                self._reserve_room(older, room, now)
                found = None
        found = found or self._find_room(group, now)
        if found:
            self._reserve_room(group, found, now)

    def _find_room(self, group: PodGroup, now: float) -> dict[str, Spot] | None:
        """Return room for a group, or None if there is none.

        There is no new search if the last one failed and no room was freed since.
        """
        if group.refusal and group.refusal[0] == self._count_freed():
            return None
        bound, name = group.list_bound(), next(iter(group.pods.values())).group
        here = {pod.node for pod in bound} | {spot.node for spot in group.spots.values()}
        waiting = group.list_unplaced()
        members = [Member(pod.uid, pod.ask, group.asked[pod.uid]) for pod in waiting]
        needed = max(1, name.size - len(bound) - len(group.spots))
        found = self._find_spots(members, here, now)
        if isinstance(found, str) and needed < len(members):  # more have asked than the group needs
            found = self._find_spots(members[:needed], here, now)
        if isinstance(found, str):
            group.refusal = self._count_freed(), f"group {name.name}: {found}"
            return None
        return found

    def _reserve_room(self, group: PodGroup, found: Mapping[str, Spot], now: float) -> None:
        group.spots |= found
        group.since = now
        self.unwritten |= found.keys()
        for uid, spot in found.items():
            self._reserve(uid, spot)
        self._queue_group(group)

    def _release_group(self, group: PodGroup, why: str = _FREE) -> None:
        """Release what is reserved for a group; ``why`` is the answer to bindings that wait."""
        if group.rendezvous.came:
            group.rendezvous.end(why)
        for uid in list(group.spots):
            self._release_spot(group, uid)

    def _release_spot(self, group: PodGroup, uid: str) -> None:
        if uid in group.rendezvous.came:
            group.rendezvous.end(_FREE)
        if group.spots.pop(uid, None):
            self.unwritten.discard(uid)
            self._release(uid)
