"""Chooses GPUs of one node: whole ones by the links between them, and those of equal shares.

All functions are pure: they depend on links and on what is free of each GPU.

GPUs are numbers here: the rows of a matrix of scores. The scores are those of published tools for
whole GPUs: from 10 across CPUs to 60 on one board, and 100 for each NVLink.
"""

from __future__ import annotations

from functools import lru_cache
from heapq import heappop, heappush
from operator import sub
from typing import TYPE_CHECKING, NamedTuple

from cgpu_k8s.objects.links import (
    HOST_BRIDGE,
    INTERNAL,
    MULTIPLE,
    NODE,
    SINGLE,
    SYSTEM,
    UNKNOWN,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cgpu_k8s.objects.links import GpuLink

    Scores = tuple[tuple[int, ...], ...]

PCIE_SCORES = {
    UNKNOWN: 0,
    SYSTEM: 10,
    NODE: 20,
    HOST_BRIDGE: 30,
    MULTIPLE: 40,
    SINGLE: 50,
    INTERNAL: 60,
}
NVLINK_SCORE = 100
MOST_EXHAUSTIVE = 16  # free GPUs up to which all sets are tried: 12,870 sets at most


class GpuSet(NamedTuple):
    """A set of GPUs of one node.

    Attributes:
        gpus: their numbers in ascending order.
        within: the sum of the scores of all links between them.
        left: the sum of the scores of all links between the free GPUs that are not in the set.
    """

    gpus: tuple[int, ...]
    within: int
    left: int


def score_links(gpus: int, links: Sequence[GpuLink]) -> Scores:
    """Return the matrix of scores of ``gpus`` GPUs, given the links of all pairs in order."""
    scores = [[0] * gpus for _ in range(gpus)]
    pairs = ((one, other) for one in range(gpus) for other in range(one + 1, gpus))
    for (one, other), link in zip(pairs, links, strict=True):
        score = PCIE_SCORES[link.kind] + NVLINK_SCORE * link.nvlinks
        scores[one][other] = scores[other][one] = score
    return tuple(map(tuple, scores))


@lru_cache(maxsize=4096)
def choose_set(
    scores: Scores, free: tuple[int, ...], count: int, partitions: tuple[int, ...] = ()
) -> GpuSet | None:
    """Return the ``count`` free GPUs with the best links.

    Among equal sets, the one that leaves the best links between the other free GPUs wins.

    Args:
        scores: the scores of the links between all GPUs of the node.
        free: the GPUs to choose from, in ascending order.
        count: the size of the set, at least 1.
        partitions: the sizes of sets that the node's switches allow, each aligned to its size; ()
            allows any set.

    Returns:
        The first of the best sets, or None if there is no set.
    """
    if not 0 < count <= len(free):
        return None
    if partitions:
        sets = _list_aligned(free, count) if count in partitions else []
    elif len(free) <= MOST_EXHAUSTIVE:
        return _find_best_set(scores, free, count)
    else:
        sets = [_grow_set(scores, free, first, count) for first in free]
    rated = [_rate_set(scores, free, gpus) for gpus in sets]
    return max(rated, key=lambda each: (each.within, each.left), default=None)


def sum_within(scores: Scores, gpus: Sequence[int]) -> int:
    """Return the sum of the scores of all links between some GPUs."""
    return sum(scores[one][other] for one in gpus for other in gpus if one < other)


def count_shares(free: Iterable[Sequence[int]], part: Sequence[int], gpus: int) -> int:
    """Return how many equal pods have room on a node, each with ``part`` of ``gpus`` GPUs.

    Args:
        free: the free units, cores and slots of each GPU; () for a GPU that takes no pod.
        part: units, cores and slots of each GPU of a pod.
        gpus: the number of GPUs of a pod, all different.
    """
    fits = [_count_parts(part, each) for each in free if each]
    pods = sum(fits) // gpus
    while (fewer := sum(min(each, pods) for each in fits) // gpus) < pods:
        pods = fewer
    return pods


def take_shares(
    left: dict[int, tuple[int, ...]], part: Sequence[int], gpus: int, limit: int
) -> list[tuple[int, ...]]:
    """Take GPUs for up to ``limit`` equal shares from ``left``, and return those of each.

    A share of one GPU gets the fullest GPU with room. A share of several gets the GPUs with room
    for most shares, so that as many as possible have room.
    """
    found: list[tuple[int, ...]] = []
    if gpus == 1:
        for _, gpu in sorted((each[0], gpu) for gpu, each in left.items()):
            count = min(_count_parts(part, left[gpu]), limit - len(found))
            if count:
                left[gpu] = tuple(map(sub, left[gpu], [each * count for each in part]))
                found += [(gpu,)] * count
            if len(found) == limit:
                break
        return found
    fits = ((_count_parts(part, each), each[0], gpu) for gpu, each in left.items())
    ahead = sorted((-count, -units, gpu) for count, units, gpu in fits if count)
    while len(found) < limit and len(ahead) >= gpus:
        taken = [heappop(ahead) for _ in range(gpus)]
        found.append(tuple(sorted(gpu for *_, gpu in taken)))
        for count, _, gpu in taken:
            left[gpu] = tuple(map(sub, left[gpu], part))
            if count < -1:
                heappush(ahead, (count + 1, -left[gpu][0], gpu))
    return found


@lru_cache(maxsize=4096)
def _count_parts(part: Sequence[int], free: Sequence[int]) -> int:
    """Return how often a part has room on one GPU."""
    return max(0, min(have // want for want, have in zip(part, free, strict=True) if want))


def _rate_set(scores: Scores, free: tuple[int, ...], gpus: tuple[int, ...]) -> GpuSet:
    left = [each for each in free if each not in gpus]
    return GpuSet(gpus, sum_within(scores, gpus), sum_within(scores, left))


def _list_aligned(free: tuple[int, ...], count: int) -> list[tuple[int, ...]]:
    """Return the sets of ``count`` free GPUs that are aligned to their size."""
    begins = [each for each in free if each % count == 0]
    sets = [tuple(range(begin, begin + count)) for begin in begins]
    return [each for each in sets if set(each) <= set(free)]


def _find_best_set(scores: Scores, free: tuple[int, ...], count: int) -> GpuSet:
    """Return the best of all sets, each of which is tried once.

    ``gains`` has what each GPU in ``rest`` would add to ``within``. ``cut`` is the sum of all links
    of the chosen GPUs. The links between the other GPUs add up to ``every - cut + within``.
    """
    sums = {gpu: sum(scores[gpu][other] for other in free) for gpu in free}
    every = sum(sums.values()) // 2
    best = GpuSet((), -1, 0)

    def extend(
        chosen: tuple[int, ...], within: int, cut: int, rest: Sequence[int], gains: list[int]
    ) -> None:
        nonlocal best
        missing = count - len(chosen)
        for at in range(len(rest) - missing + 1):
            gpu, total = rest[at], within + gains[at]
            if missing > 1:
                row, ahead = scores[gpu], rest[at + 1 :]
                more = [have + row[each] for have, each in zip(gains[at + 1 :], ahead, strict=True)]
                extend((*chosen, gpu), total, cut + sums[gpu], ahead, more)
            elif total >= best.within:
                left = every - cut - sums[gpu] + total
                if (total, left) > best[1:]:
                    best = GpuSet((*chosen, gpu), total, left)

    extend((), 0, 0, free, [0] * len(free))
    return best


def _grow_set(scores: Scores, free: tuple[int, ...], first: int, count: int) -> tuple[int, ...]:
    """Return a good set: start with GPU ``first``, then always add the GPU with the best links."""
    chosen = [first]
    while len(chosen) < count:
        rest = (each for each in free if each not in chosen)
        chosen.append(max(rest, key=lambda gpu: sum(scores[gpu][each] for each in chosen)))
    return tuple(sorted(chosen))
