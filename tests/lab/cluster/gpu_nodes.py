"""Nodes of eight GPUs, and groups of pods that ask for them, without objects of an API server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cgpu_k8s.objects.groups import GroupName
from cgpu_k8s.objects.links import GpuLink
from cgpu_k8s.scheduler.gangs import Ask, Member, Room, Spot, place_members
from cgpu_k8s.scheduler.group import GroupPod
from cgpu_k8s.scheduler.groups import Groups
from cgpu_k8s.scheduler.topology import score_links

if TYPE_CHECKING:
    from collections.abc import Sequence

GPUS = 8
SCORES = score_links(GPUS, [GpuLink("s", 4)] * 28)


class Nodes:
    """Nodes of eight GPUs, and who has which of them: bound or reserved."""

    def __init__(self, *names: str) -> None:
        self.taken: dict[str, dict[int, str]] = {name: {} for name in names}
        self.freed = self.searched = 0
        self.groups = Groups(self.find, self.reserve, self.release, lambda: self.freed)
        self.bound: dict[str, Spot] = {}

    def find(self, members: Sequence[Member], here: set[str], _now: float) -> dict[str, Spot] | str:
        self.searched += 1
        rooms = [room._replace(joined=room.node in here) for room in self.rooms()]
        return place_members(members, rooms)

    def rooms(self) -> list[Room]:
        found = []
        for name, taken in self.taken.items():
            whole = tuple(gpu for gpu in range(GPUS) if gpu not in taken)
            found.append(Room(name, ((8, 100, 20),) * GPUS, whole, SCORES))
        return found

    def reserve(self, uid: str, spot: Spot) -> None:
        for gpu in spot.gpus:
            assert self.taken[spot.node].setdefault(gpu, uid) == uid, "two pods on one GPU"

    def release(self, uid: str) -> None:
        self.freed += 1
        for taken in self.taken.values():
            for gpu in [gpu for gpu, owner in taken.items() if owner == uid]:
                del taken[gpu]

    def ask(self, pod: GroupPod, now: float = 0.0, nodes: str = "") -> Spot | str:
        return self.groups.find_spot(pod.uid, nodes or [*self.taken], now)

    def bind(self, pod: GroupPod, spot: Spot) -> None:
        self.bound[pod.uid] = spot
        self.groups.update_pod(pod._replace(node=spot.node))

    def come(self, pod: GroupPod) -> set[str]:
        """Let a binding wait for those of its group; the pods that are bound as all have come."""
        rendezvous = self.groups.arrive(pod.uid)
        if rendezvous.answer is None:
            return set()
        assert rendezvous.answer == ""
        spots = self.groups._groups[pod.group[:2]].spots  # noqa: SLF001
        came = rendezvous.came.copy()
        for uid in sorted(came):
            self.bind(pod._replace(uid=uid), spots[uid])
        return came

    def delete(self, pod: GroupPod) -> None:
        self.groups.remove_pod(pod.uid)
        self.release(pod.uid)
        self.bound.pop(pod.uid, None)

    def count(self) -> int:
        return sum(map(len, self.taken.values()))


def group(name: str, size: int, gpus: int = 2, first: int = 0) -> list[GroupPod]:
    made = GroupName("ml", name, size)
    return [GroupPod(f"{name}-{n}", made, f"{first + n:06}", Ask(gpus)) for n in range(size)]


def known(nodes: Nodes, *pods: GroupPod) -> None:
    for pod in pods:
        nodes.groups.update_pod(pod)
