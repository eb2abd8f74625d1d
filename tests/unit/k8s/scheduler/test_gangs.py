"""Nodes and GPUs for whole groups of pods: as good as by brute force on small clusters. COS-7."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpu_k8s.objects.links import GpuLink
from cgpu_k8s.scheduler import gangs
from cgpu_k8s.scheduler.gangs import Ask, Member, Room, Spot, place_members
from cgpu_k8s.scheduler.topology import score_links, sum_within
from lab.runs.profiled import count_calls

pytestmark = pytest.mark.unit


def room(name: str, chance: random.Random, gpus: int) -> Room:
    """A node with random links, of which some GPUs are taken."""
    links = [
        GpuLink(chance.choice("sy"), chance.choice((0, 0, 2)))
        for _ in range(gpus * (gpus - 1) // 2)
    ]
    free = tuple((8, 100, 20) if chance.random() < 0.8 else (4, 40, 19) for _ in range(gpus))
    whole = tuple(gpu for gpu, part in enumerate(free) if part[0] == 8)
    return Room(name, free, whole, score_links(gpus, links))


def empty(name: str, gpus: int = 8) -> Room:
    """A node with two islands of NVLinks."""
    pairs = itertools.combinations(range(gpus), 2)
    half = gpus // 2
    links = [
        GpuLink("s", 4) if one // half == other // half else GpuLink("y") for one, other in pairs
    ]
    free = ((8, 100, 20),) * gpus
    return Room(name, free, tuple(range(gpus)), score_links(gpus, links))


def members(*sizes: int, nodes: str = "abc", part: tuple[int, ...] = ()) -> list[Member]:
    return [Member(f"u{n}", Ask(size, part), frozenset(nodes)) for n, size in enumerate(sizes)]


def cost(rooms: dict[str, Room], spots: dict[str, Spot]) -> tuple[int, int]:
    """Number of nodes, and the sum of links within each node's part, as less is better."""
    used: dict[str, list[int]] = {}
    for spot in spots.values():
        used.setdefault(spot.node, []).extend(spot.gpus)
    nodes = sum(not rooms[name].joined for name in used)
    return nodes, -sum(sum_within(rooms[name].scores, gpus) for name, gpus in used.items())


def tried(group: list[Member], rooms: dict[str, Room]) -> tuple[int, int] | None:
    """The least cost of all ways to give each pod GPUs of its own."""
    best: tuple[int, int] | None = None

    def go(at: int, spots: dict[str, Spot], taken: set[tuple[str, int]]) -> None:
        nonlocal best
        if at == len(group):
            found = cost(rooms, spots)
            best = found if best is None else min(best, found)
            return
        pod = group[at]
        for name in sorted(pod.nodes & rooms.keys()):
            open_to = [gpu for gpu in rooms[name].whole if (name, gpu) not in taken]
            for gpus in itertools.combinations(open_to, pod.ask.gpus):
                here = {(name, gpu) for gpu in gpus}
                go(at + 1, {**spots, pod.uid: Spot(name, gpus)}, taken | here)

    go(0, {}, set())
    return best


def test_a_group_of_whole_gpus_is_placed_as_by_brute_force() -> None:
    chance = random.Random(7)
    placed = 0
    for _ in range(400):
        rooms = {name: room(name, chance, chance.randint(1, 4)) for name in "abc"}
        if chance.random() < 0.3:
            rooms["b"] = rooms["b"]._replace(joined=True)
        sizes = [chance.choice((1, 1, 2)) for _ in range(chance.randint(1, 4))]
        group = [
            each._replace(nodes=frozenset(chance.choice(("abc", "abc", "ab", "c"))))
            for each in members(*sizes)
        ]
        found, expected = place_members(group, rooms.values()), tried(group, rooms)
        if isinstance(found, str):
            assert expected is None
            continue
        placed += 1
        assert cost(rooms, found) == expected
        assert found.keys() == {each.uid for each in group}
        taken = [(spot.node, gpu) for spot in found.values() for gpu in spot.gpus]
        assert len(taken) == len(set(taken))
        for each in group:
            spot = found[each.uid]
            assert spot.node in each.nodes
            assert len(spot.gpus) == each.ask.gpus
            assert set(spot.gpus) <= set(rooms[spot.node].whole)
    assert 100 < placed < 390


def fits(left: dict[tuple[str, int], list[int]], group: list[Member]) -> bool:
    """Whether shares have room in some way."""
    if not group:
        return True
    ask = group[0].ask
    for node in sorted({node for node, _ in left} & group[0].nodes):
        able = [key for key in left if key[0] == node and left[key][0] >= ask.part[0]]
        for keys in itertools.combinations(able, ask.gpus):
            for key in keys:
                left[key][0] -= ask.part[0]
            whole = fits(left, group[1:])
            for key in keys:
                left[key][0] += ask.part[0]
            if whole:
                return True
    return False


def test_a_group_of_equal_shares_is_refused_only_where_no_way_has_room() -> None:
    chance = random.Random(8)
    refused = 0
    for _ in range(300):
        rooms = [room(name, chance, chance.randint(1, 3)) for name in "ab"]
        size, units = chance.choice((1, 1, 2)), chance.choice((2, 3, 4, 5))
        group = members(*[size] * chance.randint(1, 5), part=(units, 0, 1))
        left = {(each.node, gpu): [part[0]] for each in rooms for gpu, part in enumerate(each.free)}
        found = place_members(group, rooms)
        refused += isinstance(found, str)
        assert isinstance(found, dict) == fits(left, group)
        for spot in found.values() if isinstance(found, dict) else ():
            for gpu in spot.gpus:
                left[spot.node, gpu][0] -= units
        assert all(units[0] >= 0 for units in left.values())
    assert 20 < refused < 280


def test_a_group_goes_to_the_fewest_nodes_and_into_islands() -> None:
    spots = place_members(members(2, 2, 2, 2), [empty("a", 4), empty("b"), empty("c")])
    assert isinstance(spots, dict)
    assert {spot.node for spot in spots.values()} == {"b"}
    assert all(len({gpu // 4 for gpu in spot.gpus}) == 1 for spot in spots.values())


def test_a_group_goes_where_some_of_it_is_already() -> None:
    rooms = [empty("a"), empty("b")._replace(joined=True)]
    spots = place_members(members(4), rooms)
    assert isinstance(spots, dict)
    assert spots["u0"].node == "b"


def test_of_equal_nodes_the_one_with_the_least_left_is_taken() -> None:
    less = empty("b")._replace(free=((8, 100, 20),) * 4 + ((),) * 4, whole=(0, 1, 2, 3))
    spots = place_members(members(2, part=(4, 0, 1)), [empty("a"), less])
    assert isinstance(spots, dict)
    assert spots["u0"].node == "b"


def test_whole_gpus_and_shares_of_one_group_do_not_meet_on_a_gpu() -> None:
    group = [*members(3), Member("share", Ask(1, (4, 0, 1)), frozenset("abc"))]
    spots = place_members(group, [empty("a", 4)])
    assert isinstance(spots, dict)
    assert not set(spots["share"].gpus) & set(spots["u0"].gpus)
    assert isinstance(place_members([*group, *members(1)[:0]], [empty("a", 2)]), str)


@pytest.mark.parametrize(
    ("group", "sentence"),
    [
        (members(8, 8, 8), "its 3 pods ask for 24 GPUs, and their nodes have 16 in all"),
        (members(5, 5, 5), "its nodes have room for 2 of its 3 pods that wait"),
        (members(1, part=(9, 0, 1)), "its nodes have no room for its one waiting pod"),
        (members(5, 5, 5, 1), "its nodes have room for at most 3 of its 4 pods that wait"),
        (members(7, 7, 2), "its nodes have room for 2 of its 3 pods that wait"),
        (members(1, nodes="z"), "its one waiting pod asks for 1 GPU, and its nodes have 0 in all"),
    ],
)
def test_a_group_without_room_gets_a_sentence(group: list[Member], sentence: str) -> None:
    assert place_members(group, [empty("a"), empty("b")]) == sentence


def shares(*sizes: int, nodes: str = "abc") -> list[Member]:
    """A pod for each size, with a share of one GPU."""
    return [
        Member(f"u{n}", Ask(1, (units, 0, 1)), frozenset(nodes)) for n, units in enumerate(sizes)
    ]


def test_a_group_of_too_many_different_requests_gets_a_sentence() -> None:
    roomy = empty("a")._replace(free=((80, 100, 20),) * 8)
    assert isinstance(place_members(shares(*range(1, 17)), [roomy]), dict)
    found = place_members(shares(*range(1, 18)), [roomy])
    assert found == "its 17 pods have 17 different requests: expected at most 16"


def filled(number: int) -> Room:
    """A node of eight GPUs of which something else is free than on any other node."""
    free = tuple((60 + (7 * number + gpu) % 17, 100, 20 + number) for gpu in range(8))
    return Room(f"n{number}", free, (), score_links(8, [GpuLink()] * 28))


@pytest.mark.parametrize("first", [1, 50])
@pytest.mark.parametrize("nodes", [2, 40])
def test_a_search_ends_soon_whatever_is_asked(nodes: int, first: int) -> None:
    """Nine pods of 50 GiB and more have no room on the eight GPUs where they may go."""
    rooms = [filled(number) for number in range(nodes)]
    names = frozenset(each.node for each in rooms)
    group = [
        each._replace(nodes=names if first == 1 or n == 9 else frozenset({"n0"}))
        for n, each in enumerate(shares(*range(first, first + 10)))
    ]
    found: list[object] = []
    assert count_calls(lambda: found.append(place_members(group, rooms))) < 200_000
    assert isinstance(found[0], dict) == (first == 1)


def whole(name: str, gpus: int) -> Room:
    scores = score_links(gpus, [GpuLink()] * (gpus * (gpus - 1) // 2))
    return Room(name, ((8, 100, 20),) * gpus, tuple(range(gpus)), scores)


def test_a_search_that_was_cut_off_does_not_say_that_there_is_no_room() -> None:
    """Who fills one node after the other finds no room: the large pod has to be on the smaller."""
    group, rooms = members(5, 3, 3), [whole("a", 6), whole("b", 5)]
    assert isinstance(place_members(group, rooms), dict)
    with mock.patch.object(gangs, "MOST_WORK", 0):
        found = place_members(group, rooms)
    assert found == (
        "no quick search found room for its 3 pods, which have 2 different requests or sets of"
        " nodes: expected fewer"
    )


def check_room(group: list[Member], rooms: Iterable[Room], spots: dict[str, Spot]) -> None:
    """All pods have GPUs where they may go, and nobody has of a GPU what another has, too."""
    assert spots.keys() == {each.uid for each in group}
    free = {(each.node, gpu): part for each in rooms for gpu, part in enumerate(each.free)}
    shared = {(spots[each.uid].node, gpu) for each in group for gpu in spots[each.uid].gpus}
    for each in group:
        spot = spots[each.uid]
        assert spot.node in each.nodes
        assert len({*spot.gpus}) == each.ask.gpus
        for key in ((spot.node, gpu) for gpu in spot.gpus):
            if each.ask.part:
                pairs = zip(free[key], each.ask.part, strict=True)
                free[key] = tuple(have - want for have, want in pairs)
                assert min(free[key]) >= 0
            else:
                assert key in shared
                shared.remove(key)
                del free[key]


@pytest.mark.parametrize("part", [(), (4, 0, 1)])
@pytest.mark.parametrize("pods", [64, 1024, 9999])
def test_equal_pods_have_room_however_many_and_wherever_they_may_go(
    pods: int, part: tuple[int, ...]
) -> None:
    """While they asked, nodes were filled, or closed to pods."""
    rooms = [filled(n)._replace(whole=tuple(range(8))) for n in range(pods // 8 + 24)]
    every = frozenset(each.node for each in rooms)
    sets = [every, *(every - {f"n{n}"} for n in range(20))]
    for some in (sets[:1], sets[:2], sets):
        group = [Member(f"u{n}", Ask(1, part), some[n % len(some)]) for n in range(pods)]
        spots = place_members(group, rooms)
        assert isinstance(spots, dict)
        check_room(group, rooms, spots)


NODES = st.sets(st.sampled_from("abc")).map(frozenset)
ROOMS = st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=3), min_size=3, max_size=3)
ASKS = st.builds(Ask, st.integers(1, 2), st.sampled_from([(), (2, 0, 1), (3, 20, 1), (5, 0, 1)]))


def rooms_of(free: list[list[int]]) -> list[Room]:
    """Nodes of GPUs with so many units free, of eight."""
    return [
        whole(name, len(units))._replace(
            free=tuple((each, 100, 20) for each in units),
            whole=tuple(gpu for gpu, each in enumerate(units) if each == 8),
        )
        for name, units in zip("abc", free, strict=True)
    ]


@given(ROOMS, st.lists(st.tuples(ASKS, NODES), max_size=8), st.sampled_from([0, 60, 12_000]))
def test_no_placement_gives_more_than_there_is(
    free: list[list[int]], asks: list[tuple[Ask, frozenset[str]]], work: int
) -> None:
    rooms = rooms_of(free)
    group = [Member(f"u{n}", *each) for n, each in enumerate(asks)]
    with mock.patch.object(gangs, "MOST_WORK", work):
        spots = place_members(group, rooms)
    if isinstance(spots, dict):
        check_room(group, rooms, spots)


@given(ROOMS, ASKS, st.lists(NODES, min_size=1, max_size=4), st.sampled_from([1, 4]))
def test_equal_pods_have_room_wherever_any_way_has(
    free: list[list[int]], ask: Ask, nodes: list[frozenset[str]], sets: int
) -> None:
    """If all may go to the same nodes, the placement that is found first has all of them."""
    rooms = rooms_of(free)
    group = [Member(f"u{n}", ask, nodes[n % sets]) for n in range(len(nodes))]
    with mock.patch.object(gangs, "MOST_WORK", gangs.MOST_WORK if sets > 1 else 0):
        found = place_members(group, rooms)
    if ask.part:
        left = {(each.node, gpu): [part[0]] for each in rooms for gpu, part in enumerate(each.free)}
        assert isinstance(found, dict) == fits(left, group)
    else:
        exists = tried(group, {each.node: each for each in rooms}) is not None
        assert isinstance(found, dict) == exists


def test_equal_shares_of_several_gpus_fill_those_with_room_for_most() -> None:
    """By whatever is short: units, cores or slots."""
    free = ((8, 50, 20), (8, 50, 20), (4, 100, 20))
    room_ = Room("a", free, (), score_links(3, [GpuLink("s")] * 3))
    found = place_members(members(2, 2, part=(1, 50, 1)), [room_])
    assert isinstance(found, dict)
    assert {spot.gpus for spot in found.values()} == {(0, 2), (1, 2)}
