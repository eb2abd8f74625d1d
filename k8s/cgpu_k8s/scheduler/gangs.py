"""Finds nodes and GPUs for a whole group of pods at once: pure functions of rooms and pods.

The best placement has the fewest nodes, then the greatest sum of links between the group's GPUs on
each node, then the fullest nodes. Pods with equal requests and equal allowed nodes are one kind.
The search is a dynamic program: for each combination of numbers of pods per kind, it keeps the best
placement, and extends it node by node. The result is exact, with one exception: shares of different
sizes on one node are placed greedily, the largest first.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from cgpu_k8s.scheduler.topology import choose_set, sum_within

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cgpu_k8s.scheduler.topology import Scores

    Vector = tuple[int, ...]  # the number of pods of each kind

MOST_STATES = 1024  # combinations of numbers of pods per kind, in one search


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


class _Option(NamedTuple):
    """Pods to place on one node, and their cost: nodes, negative sum of links, free units."""

    vector: Vector
    cost: tuple[int, int, int]


class _Step(NamedTuple):
    """The best placement found for some pods: the last node, its pods, and the step before it."""

    cost: tuple[int, int, int]
    room: Room | None = None
    vector: Vector = ()
    before: _Step | None = None


def place_members(members: Sequence[Member], rooms: Iterable[Room]) -> dict[str, Spot] | str:
    """Find room for all pods of a group together.

    Returns:
        Each pod's node and GPUs, by the pod's UID, or a sentence on why there is no room.
    """
    kinds = sorted({(each.ask, each.nodes) for each in members}, key=_order_kind)
    counts = Counter((each.ask, each.nodes) for each in members)
    wanted = tuple(counts[kind] for kind in kinds)
    states = 1
    for count in wanted:
        states *= count + 1
    if states > MOST_STATES:
        return f"its {len(members)} pods ask for {len(kinds)} different things: expected fewer"
    # Emptier nodes come first, so that the search soon finds a placement on few nodes.
    rooms = sorted(rooms, key=lambda room: (-len(room.whole), room.node))
    options: dict[object, list[_Option]] = {}
    copies = Counter[object]()
    usable = []
    for room in rooms:
        allowed = tuple(room.node in nodes for _, nodes in kinds)
        key = (room[1:], allowed)
        copies[key] += 1
        if key not in options:
            limits = [count if may else 0 for count, may in zip(wanted, allowed, strict=True)]
            options[key] = _list_options(room, [ask for ask, _ in kinds], limits)
        if options[key] and copies[key] <= len(members):
            usable.append((room, options[key]))
    sizes = (sum(vector) for _, choices in usable for vector, _ in choices)
    most = max(sizes, default=1) if not any(room.joined for room in rooms) else len(members)
    ways = {tuple(0 for _ in kinds): _Step((0, 0, 0))}
    for room, choices in usable:
        ways = _add_room(ways, room, choices, wanted, most)
    if wanted not in ways:
        return _explain_lack(members, rooms, max(map(sum, ways)))
    return _collect_spots(members, kinds, ways[wanted])


def _order_kind(kind: tuple[Ask, frozenset[str]]) -> tuple[object, ...]:
    """Return the sort key of a kind: whole GPUs come before shares, and large requests first."""
    (gpus, part), nodes = kind
    return (bool(part), [-each for each in part], -gpus, sorted(nodes))


def _list_options(room: Room, asks: Sequence[Ask], limits: Sequence[int]) -> list[_Option]:
    """Return all combinations of pods that fit on a node together, with their costs.

    ``limits`` has the most pods of each kind.
    """
    found = []
    ahead = [(tuple(0 for _ in asks), 0)]
    while ahead:
        vector, first = ahead.pop()
        for at in range(first, len(asks)):
            more = (*vector[:at], vector[at] + 1, *vector[at + 1 :])
            spots = _fill_room(room, asks, more) if more[at] <= limits[at] else None
            if spots is not None:
                found.append(_Option(more, _rate_spots(room, asks, more, spots)))
                ahead.append((more, at))
    return found


def _rate_spots(
    room: Room, asks: Sequence[Ask], vector: Vector, spots: Sequence[tuple[int, ...]]
) -> tuple[int, int, int]:
    kinds = [ask for ask, count in zip(asks, vector, strict=True) for _ in range(count)]
    whole = [gpu for ask, gpus in zip(kinds, spots, strict=True) if not ask.part for gpu in gpus]
    units = sum(part[0] for part in room.free if part)
    return (int(not room.joined), -sum_within(room.scores, whole), units)


def _fill_room(room: Room, asks: Sequence[Ask], vector: Vector) -> list[tuple[int, ...]] | None:
    """Return the GPUs of each pod of a combination on one node, or None if it does not fit."""
    pods = [ask for ask, count in zip(asks, vector, strict=True) for _ in range(count)]
    every = sum(ask.gpus for ask in pods if not ask.part)
    union = choose_set(room.scores, room.whole, every) if every else None
    if every and union is None:
        return None
    rest = union.gpus if union else ()
    left = {gpu: part for gpu, part in enumerate(room.free) if part and gpu not in rest}
    found = []
    for ask in pods:
        gpus = _take_share(left, ask) if ask.part else _take_whole(room.scores, rest, ask.gpus)
        if gpus is None:
            return None
        rest = rest if ask.part else tuple(each for each in rest if each not in gpus)
        found.append(gpus)
    return found


def _take_whole(scores: Scores, rest: tuple[int, ...], count: int) -> tuple[int, ...] | None:
    found = choose_set(scores, rest, count)
    return found.gpus if found else None


def _take_share(left: dict[int, tuple[int, ...]], ask: Ask) -> tuple[int, ...] | None:
    """Take GPUs for a share from ``left``, and return them; None if there are too few.

    A share of one GPU gets the fullest GPU with room. A share of several gets the emptiest ones.
    """
    order = 1 if ask.gpus == 1 else -1
    able = sorted(
        (order * part[0], gpu)
        for gpu, part in left.items()
        if all(want <= have for want, have in zip(ask.part, part, strict=True))
    )
    if len(able) < ask.gpus:
        return None
    gpus = tuple(sorted(gpu for _, gpu in able[: ask.gpus]))
    for gpu in gpus:
        left[gpu] = tuple(have - want for have, want in zip(left[gpu], ask.part, strict=True))
    return gpus


def _add_room(
    ways: Mapping[Vector, _Step],
    room: Room,
    options: Sequence[_Option],
    wanted: Vector,
    most: int,
) -> dict[Vector, _Step]:
    """Return the best placements that may also use this node. A node takes up to ``most`` pods."""
    found, every = dict(ways), sum(wanted)
    fewest = ways[wanted].cost[0] if wanted in ways else every
    for state, way in ways.items():
        nodes, links, units = way.cost
        if nodes - (sum(state) - every) // most > fewest:  # a lower bound on the nodes needed
            continue
        for vector, cost in options:
            total = tuple(map(sum, zip(state, vector, strict=True)))
            if any(have > want for have, want in zip(total, wanted, strict=True)):
                continue
            step = (nodes + cost[0], links + cost[1], units + cost[2])
            if total not in found or step < found[total].cost:
                found[total] = _Step(step, room, vector, way)
    return found


def _collect_spots(
    members: Sequence[Member], kinds: Sequence[tuple[Ask, frozenset[str]]], way: _Step
) -> dict[str, Spot]:
    waiting = {
        kind: [each.uid for each in members if (each.ask, each.nodes) == kind] for kind in kinds
    }
    found: dict[str, Spot] = {}
    step: _Step | None = way
    while step and step.room:
        pods = [kind for kind, n in zip(kinds, step.vector, strict=True) for _ in range(n)]
        spots = _fill_room(step.room, [ask for ask, _ in kinds], step.vector) or []
        for kind, gpus in zip(pods, spots, strict=True):
            found[waiting[kind].pop(0)] = Spot(step.room.node, gpus)
        step = step.before
    return found


def _explain_lack(members: Sequence[Member], rooms: Sequence[Room], most: int) -> str:
    allowed = frozenset().union(*(each.nodes for each in members))
    have = sum(len(room.free) for room in rooms if room.node in allowed)
    asked = sum(each.ask.gpus for each in members if not each.ask.part)
    if asked > have:
        return f"its {len(members)} pods ask for {asked} GPUs, and their nodes have {have} in all"
    return f"its nodes have room for {most} of its {len(members)} pods that wait"
