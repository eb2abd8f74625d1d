"""Chooses the GPUs of a node for a pod: pure functions of the GPUs and of the pod's request.

They use no clock, file, random number or state outside their arguments, so a simulation can run the
same code as the scheduler. ``units`` count memory as ``aliyun.com/gpu-mem`` does (GiB). ``cores``
are hundredths of a GPU's time (``aliyun.com/gpu-core.percentage``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cgpu_k8s.objects.allocations import Allocation
from cgpu_k8s.objects.gpus import CORE_MEM, TOPOLOGY
from cgpu_k8s.objects.links import GpuLink
from cgpu_k8s.objects.nodes import BINPACK, SPREAD
from cgpu_k8s.objects.pod_request import (
    NOTHING,
    WHOLE,
    Part,
    compute_container_part,
    compute_pod_part,
)
from cgpu_k8s.scheduler.gangs import Room
from cgpu_k8s.scheduler.topology import choose_set, score_links

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from cgpu_k8s.objects.gpus import OfferedGpu
    from cgpu_k8s.objects.pod_request import PodRequest


MOST_ANSWERS = 64  # answers that a node keeps until it changes
# The reasons why a pod does not fit on a node. Only FULL can change when other pods end.
WRONG_MODE, TOO_FEW, TOO_LARGE, FULL = "wrong-mode", "too-few", "too-large", "full"
WITHHELD = "withheld"  # the node offers nothing now


class Refusal(NamedTuple):
    """The reason not to place a pod on a node; nodes with the same reason get the same sentence."""

    code: str
    sentence: str


class Choice(NamedTuple):
    """The GPUs of a node for a request, and the node's rank: the least is the best."""

    gpus: tuple[str, ...]
    rank: tuple[int, ...]


class NodeInfo:
    """The GPUs that a node offers, and the parts of them that pods have.

    Answers are kept until the node changes. So if one of a thousand nodes has changed, asking all
    of them costs little more than asking that one.

    Attributes:
        name: the name of the node.
        mode: how it isolates containers, one of MODES.
        placement: BINPACK or SPREAD.
        gpus: the GPUs that it offers, by UUID.
        taken: the allocations of pods, by the pod's UID, including those on GPUs that the node no
            longer offers.

    Args:
        links: the links of all pairs of GPUs, as ``links.py`` orders them; () if unknown.
    """

    def __init__(
        self,
        name: str,
        mode: str,
        placement: str,
        gpus: Iterable[OfferedGpu],
        links: Sequence[GpuLink] = (),
    ) -> None:
        self.name = name
        self.mode = mode
        self.placement = placement
        self.gpus = {gpu.uuid: gpu for gpu in gpus}
        self.taken: dict[str, Allocation] = {}
        self._ordered = sorted(self.gpus.values(), key=lambda gpu: gpu.index)
        pairs = len(self.gpus) * (len(self.gpus) - 1) // 2
        self._scores = score_links(len(self.gpus), tuple(links) or pairs * (GpuLink(),))
        self._room: Room | None = None
        self._used: dict[str, Part] = {}
        self._answers: dict[tuple[object, ...], Choice | Refusal] = {}

    def add(self, allocation: Allocation) -> None:
        """Add or replace a pod's allocation, even if it exceeds what the node offers now."""
        self.remove(allocation.pod)
        self.taken[allocation.pod] = allocation
        self._update_used(allocation, 1)

    def remove(self, pod: str) -> None:
        """Remove a pod's allocation, if it has one."""
        allocation = self.taken.pop(pod, None)
        if allocation:
            self._update_used(allocation, -1)

    def _update_used(self, allocation: Allocation, sign: int) -> None:
        for uuid in allocation.gpus:
            taken = self.resolve_part(uuid, allocation.part)
            pairs = zip(self.used_part(uuid), taken, strict=True)
            self._used[uuid] = Part(*(have + sign * part for have, part in pairs))
        self._answers.clear()
        self._room = None

    def resolve_part(self, uuid: str, part: Part) -> Part:
        """Return a part of a GPU in numbers: WHOLE is all that the node offers of the GPU."""
        gpu = self.gpus.get(uuid)
        return Part(gpu.units, gpu.cores, gpu.slots) if gpu and part == WHOLE else part

    def used_part(self, uuid: str) -> Part:
        """Return the part of a GPU that pods have."""
        return self._used.get(uuid, NOTHING)

    def free_part(self, gpu: OfferedGpu) -> Part:
        """Return the free part of a GPU, which is negative where pods have more than it offers."""
        able, used = gpu.allocatable, self.used_part(gpu.uuid)
        return Part(able.units - used.units, able.cores - used.cores, able.slots - used.slots)

    def find_room(self) -> Room:
        """Return the room that the node has for groups of pods."""
        if self._room is None:
            whole = tuple(
                number
                for number, gpu in enumerate(self._ordered)
                if self._has_left(gpu, self.resolve_part(gpu.uuid, WHOLE))
            )
            free = tuple(tuple(self.free_part(g)) if g.healthy else () for g in self._ordered)
            self._room = Room(self.name, free, whole, self._scores)
        return self._room

    def has_room(self, gpus: Iterable[str], part: Part) -> bool:
        """Return whether the node offers all these GPUs, and each has ``part`` free."""
        return all(
            uuid in self.gpus and self._has_left(self.gpus[uuid], self.resolve_part(uuid, part))
            for uuid in gpus
        )

    def _has_left(self, gpu: OfferedGpu, taken: Part) -> bool:
        return gpu.healthy and _fits_into(taken, self.free_part(gpu))

    def get_uuids(self, numbers: Iterable[int]) -> tuple[str, ...]:
        """Return the UUIDs of GPUs, given their numbers in a ``Room``."""
        return tuple(self._ordered[number].uuid for number in numbers)

    def get_numbers(self, uuids: Iterable[str]) -> tuple[int, ...]:
        """Return the numbers in a ``Room`` of GPUs of this node, in ascending order."""
        known = [gpu.uuid for gpu in self._ordered]
        return tuple(sorted(known.index(uuid) for uuid in uuids))

    def choose(self, request: PodRequest, part: Part) -> Choice | Refusal:
        """Return the GPUs that the node would give to a pod with ``part`` of each, or why none."""
        key = (request.gpus, part, request.owner if self.placement == SPREAD else "")
        answer = self._answers.get(key)
        if answer is None:
            if len(self._answers) >= MOST_ANSWERS:  # under SPREAD, each controller has its own
                self._answers.clear()
            answer = self._answers[key] = self._choose_gpus(request, part)
        return answer

    def _choose_gpus(self, request: PodRequest, part: Part) -> Choice | Refusal:
        refusal = self.explain_unsuitable(request, part)
        if refusal:
            return refusal
        if part == WHOLE:
            return self._choose_whole(request.gpus)
        order = ORDERS[self.placement]
        fitting = sorted(
            (order(self, gpu, request.owner), gpu.index, gpu.uuid)
            for gpu in self.gpus.values()
            if self._has_left(gpu, part)
        )
        if len(fitting) < request.gpus:
            have = f"{_format_gpu_count(len(fitting))} {_format_part(part)} free"
            return Refusal(FULL, f"{have}{_format_request(request)}")
        chosen = fitting[: request.gpus]
        ranks = zip(*(rank for rank, _, _ in chosen), strict=True)
        return Choice(
            tuple(uuid for _, _, uuid in chosen),
            (int(self.placement == SPREAD), *map(sum, ranks), self._free_units()),
        )

    def _choose_whole(self, count: int) -> Choice | Refusal:
        """Choose the GPUs with the best links, of those that are free as a whole."""
        free = self.find_room().whole
        best = choose_set(self._scores, free, count)
        if best is None:
            have = {0: "no GPU is", 1: "only 1 GPU is"}.get(len(free), f"only {len(free)} GPUs are")
            return Refusal(FULL, f"{have} free as a whole, and {count} are asked for")
        left = len(free) - count
        is_spread = self.placement == SPREAD
        return Choice(
            self.get_uuids(best.gpus),
            (int(is_spread), -best.within, -left if is_spread else left, -best.left),
        )

    def _free_units(self) -> int:
        return sum(self.free_part(gpu).units for gpu in self.gpus.values())

    def count_replicas(self, uuid: str, owner: str) -> int:
        """Return how many pods of one controller have a part of a GPU."""
        return sum(
            uuid in allocation.gpus
            for allocation in self.taken.values()
            if allocation.owner == owner != ""
        )

    def explain_unsuitable(self, request: PodRequest, part: Part) -> Refusal | None:
        """Return why the node could not take the pod even if it were empty; None if it could."""
        if (part == WHOLE) != (self.mode == TOPOLOGY):
            asked = "with" if part == WHOLE else "without"
            return Refusal(
                WRONG_MODE,
                f"ack.node.gpu.schedule={self.mode}: the node takes no pod {asked} aliyun.com/gpu",
            )
        if (part.cores > 0) != (self.mode == CORE_MEM):
            asked = "with" if part.cores else "without"
            return Refusal(
                WRONG_MODE,
                f"ack.node.gpu.schedule={self.mode}: the node takes no pod {asked}"
                " aliyun.com/gpu-core.percentage",
            )
        able = [gpu for gpu in self.gpus.values() if gpu.healthy]
        if len(able) < request.gpus:
            return Refusal(TOO_FEW, f"{request.gpus} GPUs are asked for, {len(able)} are here")
        whole = [gpu for gpu in able if _fits_into(part, Part(gpu.units, gpu.cores, gpu.slots))]
        if len(whole) < request.gpus:
            have = f"{_format_gpu_count(len(whole))} {_format_part(part)} in all"
            return Refusal(TOO_LARGE, f"{have}{_format_request(request)}")
        return None


def _fits_into(part: Part, room: Part) -> bool:
    return part.units <= room.units and part.cores <= room.cores and part.slots <= room.slots


def _format_gpu_count(count: int) -> str:
    return {0: "no GPU has", 1: "only 1 GPU has"}.get(count, f"only {count} GPUs have")


def _format_part(part: Part) -> str:
    units = f"{part.units} GiB of aliyun.com/gpu-mem"
    # No percent sign: kube-scheduler uses the reason as a format string, where "% o" is a verb.
    return f"{units} and {part.cores} percent of its time" if part.cores else units


def _format_request(request: PodRequest) -> str:
    return f", and {request.gpus} are asked for" if request.gpus > 1 else ""


def _rank_binpack(node: NodeInfo, gpu: OfferedGpu, _: str) -> tuple[int, ...]:
    return (node.free_part(gpu).units,)


def _rank_spread(node: NodeInfo, gpu: OfferedGpu, owner: str) -> tuple[int, ...]:
    return (node.count_replicas(gpu.uuid, owner), -node.free_part(gpu).units)


# The sort keys by which GPUs are chosen: the least is the best, and the index breaks ties.
ORDERS: Mapping[str, Callable[[NodeInfo, OfferedGpu, str], tuple[int, ...]]] = {
    BINPACK: _rank_binpack,
    SPREAD: _rank_spread,
}


def make_allocation(request: PodRequest, node: str, gpus: tuple[str, ...]) -> Allocation:
    """Return the allocation of these GPUs to a pod.

    Raises:
        PodRequestError: no node could give what the pod asks for.
    """
    containers = {
        each.name: compute_container_part(each, request.gpus) for each in request.containers
    }
    part = compute_pod_part(request)
    return Allocation(request.pod, request.owner, node, gpus, part, containers)


def allocate_gpus(node: NodeInfo, request: PodRequest) -> Allocation | Refusal:
    """Return what a node gives to a pod, or why none. It counts only after :meth:`NodeInfo.add`.

    Raises:
        PodRequestError: no node could give what the pod asks for.
    """
    choice = node.choose(request, compute_pod_part(request))
    if isinstance(choice, Refusal):
        return choice
    return make_allocation(request, node.name, choice.gpus)


def select_node(fitting: Mapping[str, Choice]) -> str:
    """Return the name of the best of the nodes that have room for a pod."""
    return min(fitting, key=lambda name: (fitting[name].rank, name))
