"""Finds nodes and GPUs for a whole group of pods at once: pure functions of rooms and pods.

The best placement has the fewest nodes, then the greatest sum of links between the group's GPUs on
each node, then the fullest nodes. Pods with equal requests and equal allowed nodes are one kind.

The first placement fills one node after the other. A dynamic program then looks for a better one:
for each combination of numbers of pods per kind, it keeps the best placement, and extends it node
by node. It ends after ``MOST_WORK``; then the best placement so far counts. Up to there the result
is exact, with one exception: shares of different sizes on one node are placed greedily, the largest
first.
"""

from __future__ import annotations

from collections import Counter
from math import comb
from operator import add, le, sub
from typing import TYPE_CHECKING, NamedTuple

from cgpu_k8s.scheduler.topology import (
    MOST_EXHAUSTIVE,
    choose_set,
    count_shares,
    sum_within,
    take_shares,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from cgpu_k8s.scheduler.topology import Scores

    Vector = tuple[int, ...]  # the number of pods of each kind
    Kind = tuple["Ask", frozenset[str]]  # the request and the allowed nodes of equal pods
    Cost = tuple[int, int, int]  # nodes, negative sum of links, free units

MOST_ASKS = 16  # different requests in a group
MOST_WORK = 12_000  # of a search, in additions of pods on a node to a placement: about 20 ms
FILLING = 8  # the work of a choice of GPUs on a node


class Ask(NamedTuple):
    """The GPUs that one pod of a group asks for.

    Attributes:
        gpus: the number of GPUs, all of one node.
        part: units, cores and slots of each GPU; () for whole GPUs.
    """

    gpus: int
    part: tuple[int, ...] = ()


class Member(NamedTuple):
    """A pod of a group, and the nodes that its scheduler allows."""

    uid: str
    ask: Ask
    nodes: frozenset[str]


class Room(NamedTuple):
    """The room that one node has for a group.

    Attributes:
        node: the name of the node.
        free: the free units, cores and slots of each GPU; () for a GPU that takes no pod.
        whole: the numbers of the GPUs that are free as a whole, in ascending order.
        scores: the scores of the links between the node's GPUs.
        joined: whether the node has pods of the group already.
    """

    node: str
    free: tuple[tuple[int, ...], ...]
    whole: tuple[int, ...]
    scores: Scores
    joined: bool = False


class Spot(NamedTuple):
    """A node and the numbers of its GPUs, for one pod of a group."""

    node: str
    gpus: tuple[int, ...]


class _Site(NamedTuple):
    """A node that can take up to ``size`` pods of a group.

    ``fits`` has how many pods of each kind have room without the others; 0 where they may not go.
    """

    room: Room
    fits: Vector
    size: int


class _Option(NamedTuple):
    """Pods to place on one node: how many of each kind, the GPUs of each, and what that costs."""

    vector: Vector
    spots: list[list[tuple[int, ...]]]
    cost: Cost


class _Step(NamedTuple):
    """The best placement found for some pods: the last node, its pods, and the step before it."""

    cost: Cost
    node: str = ""
    option: _Option | None = None
    before: _Step | None = None


class _Outcome(NamedTuple):
    """A placement of all pods, if one was found; the most pods placed; whether all was tried."""

    way: _Step | None
    most: int
    ended: bool


def place_members(members: Sequence[Member], rooms: Iterable[Room]) -> dict[str, Spot] | str:
    """Find room for all pods of a group together.

    Returns:
        Each pod's node and GPUs, by the pod's UID, or a sentence on why there is no room.
    """
    rooms, kinds = list(rooms), _count_kinds(members)
    asks = {ask for ask, _ in kinds}
    if len(asks) > MOST_ASKS:
        what = f"its {len(members)} pods have {len(asks)} different requests"
        return f"{what}: expected at most {MOST_ASKS}"
    if len(kinds) <= MOST_ASKS or len(kinds) * len(rooms) <= MOST_WORK:
        return _place_kinds(members, kinds, rooms)
    merged = _merge_nodes(members, kinds)
    found = _place_kinds(merged, _count_kinds(merged), rooms)
    if isinstance(found, dict):
        return found
    return _explain_few_gpus(members, rooms) or _explain_excess(members, kinds)


def _count_kinds(members: Sequence[Member]) -> Counter[Kind]:
    return Counter((each.ask, each.nodes) for each in members)


def _place_kinds(
    members: Sequence[Member], counts: Mapping[Kind, int], rooms: Sequence[Room]
) -> dict[str, Spot] | str:
    kinds = sorted(counts, key=_order_kind)
    asks, wanted = [ask for ask, _ in kinds], tuple(counts[kind] for kind in kinds)
    sites = _list_sites(rooms, kinds, wanted)
    most = _bound_pods(sites, asks, wanted)
    if most < len(members):
        return _explain_lack(members, rooms, f"at most {most}" if len(kinds) > 1 else str(most))
    way, most, ended = _search(sites, asks, wanted)
    if way:
        return _collect_spots(members, kinds, way)
    if ended or len(kinds) == 1:
        return _explain_lack(members, rooms, str(most))
    return _explain_excess(members, kinds)


def _merge_nodes(members: Sequence[Member], kinds: Iterable[Kind]) -> list[Member]:
    """Let pods with equal requests go only to the nodes that all of them may go to."""
    common: dict[Ask, frozenset[str]] = {}
    for ask, nodes in kinds:
        common[ask] = common.get(ask, nodes) & nodes
    return [each._replace(nodes=common[each.ask]) for each in members]


def _order_kind(kind: Kind) -> tuple[object, ...]:
    """Return the sort key: whole GPUs are before shares, large requests, and few nodes first."""
    (gpus, part), nodes = kind
    return (bool(part), [-each for each in part], -gpus, len(nodes))


def _index_asks(asks: Iterable[Ask]) -> dict[Ask, list[int]]:
    """Return the numbers of the kinds with each request."""
    found: dict[Ask, list[int]] = {}
    for at, ask in enumerate(asks):
        found.setdefault(ask, []).append(at)
    return found


def _list_sites(rooms: Sequence[Room], kinds: Sequence[Kind], wanted: Vector) -> list[_Site]:
    """Return the nodes that can take pods of the group, in the order of the search.

    Nodes that have pods of the group come first, then those that take most, then the fullest.
    """
    found = []
    alike = _index_asks(ask for ask, _ in kinds)
    totals = {ask: sum(wanted[at] for at in same) for ask, same in alike.items()}
    for room in rooms:
        fits, size = [0] * len(kinds), 0
        for ask, same in alike.items():
            allowed = [at for at in same if room.node in kinds[at][1]]
            count = _count_alone(room, ask) if allowed else 0
            size += min(count, totals[ask])
            for at in allowed:
                fits[at] = count
        if size:
            found.append(_Site(room, tuple(fits), size))
    return sorted(found, key=_order_site)


def _order_site(site: _Site) -> tuple[object, ...]:
    return (not site.room.joined, -site.size, _sum_units(site.room), site.room.node)


def _sum_units(room: Room) -> int:
    return sum(part[0] for part in room.free if part)


def _count_alone(room: Room, ask: Ask) -> int:
    """Return how many pods with this request have room on a node without others."""
    if not ask.part:
        return len(room.whole) // ask.gpus
    return count_shares(room.free, ask.part, ask.gpus)


def _bound_pods(sites: Sequence[_Site], asks: Sequence[Ask], wanted: Vector) -> int:
    """Return a number of pods, of which at most so many have room."""
    most = 0
    for same in _index_asks(asks).values():
        alone = sum(min(wanted[at], sum(site.fits[at] for site in sites)) for at in same)
        most += min(alone, sum(max(site.fits[at] for at in same) for site in sites))
    return most


def _search(sites: Sequence[_Site], asks: Sequence[Ask], wanted: Vector) -> _Outcome:
    """Find the best placement, or the best so far when the search has done MOST_WORK."""
    first, most = _fill_sites(sites, asks, wanted)
    ways = {tuple(0 for _ in wanted): _Step((0, 0, 0))}
    if most == sum(wanted):
        ways[wanted] = first
    work, weight = MOST_WORK, FILLING + len(asks)
    options: dict[object, list[_Option]] = {}
    copies = Counter[object]()
    for site in sites:
        fewest = ways[wanted].cost[0] if wanted in ways else sum(wanted)
        if wanted in ways and not site.room.joined:
            ways = _drop_hopeless(ways, site, wanted)
            if len(ways) == 1:
                break
        key = (site.room[1:], site.fits)
        copies[key] += 1
        if copies[key] > (sum(wanted) if site.room.joined else fewest):
            continue
        if key not in options:
            options[key], work = _list_options(site, asks, wanted, work)
        work -= len(ways) * (1 + len(options[key])) * weight // FILLING
        if work < 0:
            return _Outcome(ways.get(wanted), max(most, *map(sum, ways)), ended=False)
        ways = _add_room(ways, site.room.node, options[key], wanted)
    return _Outcome(ways.get(wanted), max(map(sum, ways)), ended=True)


def _fill_sites(sites: Sequence[_Site], asks: Sequence[Ask], wanted: Vector) -> tuple[_Step, int]:
    """Fill one node after the other, and return the placement with the number of its pods."""
    step, left = _Step((0, 0, 0)), wanted
    for site in sites:
        limits = tuple(map(min, left, site.fits))
        if any(limits):
            option = _fill_room(site.room, asks, limits)
            left = tuple(map(sub, left, option.vector))
            step = _Step(_add_costs(step.cost, option.cost), site.room.node, option, step)
    return step, sum(wanted) - sum(left)


def _drop_hopeless(
    ways: Mapping[Vector, _Step], site: _Site, wanted: Vector
) -> dict[Vector, _Step]:
    """Leave out what cannot become a placement on fewer nodes, or as few, as the best one has.

    No later node takes more pods than this one.
    """
    every, fewest = sum(wanted), ways[wanted].cost[0]
    return {
        state: way
        for state, way in ways.items()
        if way.cost[0] - (sum(state) - every) // site.size <= fewest
    }


def _list_options(
    site: _Site, asks: Sequence[Ask], wanted: Vector, work: int
) -> tuple[list[_Option], int]:
    """Return all combinations of pods that fit on a node together, with their costs.

    Also returns what is left of ``work``. Once it is negative, combinations are missing.
    """
    room, limits = site.room, tuple(map(min, site.fits, wanted))
    found = []
    ahead = [(tuple(0 for _ in asks), 0)]
    while ahead and work >= 0:
        vector, first = ahead.pop()
        for at in range(first, len(asks)):
            if vector[at] == limits[at] or work < 0:
                continue
            more = (*vector[:at], vector[at] + 1, *vector[at + 1 :])
            option = _fill_room(room, asks, more)
            work -= FILLING + len(asks) + _count_sets(room, asks, more) // FILLING
            if option.vector == more:
                found.append(option)
                ahead.append((more, at))
    return found, work


def _count_sets(room: Room, asks: Sequence[Ask], vector: Vector) -> int:
    """Return how many sets of whole GPUs are tried for pods on one node."""
    whole = sum(ask.gpus * count for ask, count in zip(asks, vector, strict=True) if not ask.part)
    return comb(min(len(room.whole), MOST_EXHAUSTIVE), whole) if whole else 0


def _fill_room(room: Room, asks: Sequence[Ask], limits: Vector) -> _Option:
    """Place pods on one node: of each kind as many as have room, and ``limits`` at most."""
    every = 0
    for ask, limit in zip(asks, limits, strict=True):
        if limit and not ask.part:
            every += min(limit, (len(room.whole) - every) // ask.gpus) * ask.gpus
    union = choose_set(room.scores, room.whole, every) if every else None
    rest = whole = union.gpus if union else ()
    left = {gpu: part for gpu, part in enumerate(room.free) if part and gpu not in whole}
    spots: list[list[tuple[int, ...]]] = []
    for ask, limit in zip(asks, limits, strict=True):
        if ask.part:
            spots.append(take_shares(left, ask.part, ask.gpus, limit) if limit else [])
            continue
        spots.append([])
        while len(spots[-1]) < limit and (best := choose_set(room.scores, rest, ask.gpus)):
            spots[-1].append(best.gpus)
            rest = tuple(each for each in rest if each not in best.gpus)
    cost = (int(not room.joined), -sum_within(room.scores, whole), _sum_units(room))
    return _Option(tuple(map(len, spots)), spots, cost)


def _add_room(
    ways: Mapping[Vector, _Step], node: str, options: Sequence[_Option], wanted: Vector
) -> dict[Vector, _Step]:
    """Return the best placements that may also use this node."""
    found = dict(ways)
    for state, way in ways.items():
        for option in options:
            total = tuple(map(add, state, option.vector))
            if all(map(le, total, wanted)):
                cost = _add_costs(way.cost, option.cost)
                if total not in found or cost < found[total].cost:
                    found[total] = _Step(cost, node, option, way)
    return found


def _add_costs(one: Cost, other: Cost) -> Cost:
    return (one[0] + other[0], one[1] + other[1], one[2] + other[2])


def _collect_spots(members: Sequence[Member], kinds: Sequence[Kind], way: _Step) -> dict[str, Spot]:
    waiting: dict[Kind, list[str]] = {}
    for each in reversed(members):
        waiting.setdefault((each.ask, each.nodes), []).append(each.uid)
    found: dict[str, Spot] = {}
    step: _Step | None = way
    while step and step.option:
        for kind, pods in zip(kinds, step.option.spots, strict=True):
            for gpus in pods:
                found[waiting[kind].pop()] = Spot(step.node, gpus)
        step = step.before
    return found


def _explain_lack(members: Sequence[Member], rooms: Sequence[Room], most: str) -> str:
    few = _explain_few_gpus(members, rooms)
    if few or len(members) == 1:
        return few or "its nodes have no room for its one waiting pod"
    return f"its nodes have room for {most} of its {len(members)} pods that wait"


def _explain_few_gpus(members: Sequence[Member], rooms: Sequence[Room]) -> str:
    """Return a sentence if the nodes have fewer GPUs than the pods ask for, else ""."""
    allowed = frozenset[str]().union(*{each.nodes for each in members})
    have = sum(len(room.free) for room in rooms if room.node in allowed)
    asked = sum(each.ask.gpus for each in members if not each.ask.part)
    if asked <= have:
        return ""
    one = len(members) == 1
    pods = "one waiting pod asks" if one else f"{len(members)} pods ask"
    gpus = f"{asked} GPU{'s' if asked > 1 else ''}"
    return f"its {pods} for {gpus}, and {'its' if one else 'their'} nodes have {have} in all"


def _explain_excess(members: Sequence[Member], kinds: Collection[Kind]) -> str:
    return (
        f"no quick search found room for its {len(members)} pods, which have {len(kinds)} different"
        " requests or sets of nodes: expected fewer"
    )
