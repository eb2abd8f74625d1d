"""Sets of linked GPUs: the same as by brute force, on nodes of any links."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpu_k8s.objects.links import GpuLink, read_links, write_links
from cgpu_k8s.scheduler.topology import (
    NVLINK_SCORE,
    PCIE_SCORES,
    GpuSet,
    choose_set,
    score_links,
    sum_within,
)

pytestmark = pytest.mark.unit

LINKS = st.builds(GpuLink, st.sampled_from(sorted(PCIE_SCORES)), st.sampled_from((0, 0, 1, 2, 18)))


def pairs(gpus: int) -> int:
    return gpus * (gpus - 1) // 2


def random_links(chance: random.Random, gpus: int) -> list[GpuLink]:
    """Few kinds, so that many sets are equal within and differ in what they leave."""
    kinds = chance.sample(sorted(PCIE_SCORES), 2)
    return [
        GpuLink(chance.choice(kinds), chance.choice((0, 0, 0, 1, 4))) for _ in range(pairs(gpus))
    ]


def tried(scores: tuple[tuple[int, ...], ...], free: tuple[int, ...], count: int) -> GpuSet | None:
    """The best set of all, each rated by itself; of equal ones the first."""
    best = None
    for gpus in itertools.combinations(free, count):
        left = [each for each in free if each not in gpus]
        found = GpuSet(
            gpus,
            sum(scores[one][other] for one, other in itertools.combinations(gpus, 2)),
            sum(scores[one][other] for one, other in itertools.combinations(left, 2)),
        )
        if best is None or found[1:] > best[1:]:
            best = found
    return best


def test_the_best_set_is_that_of_brute_force_on_10000_nodes() -> None:
    chance = random.Random(28)
    for _ in range(10_000):
        scores = score_links(8, random_links(chance, 8))
        free = tuple(sorted(chance.sample(range(8), chance.randint(1, 8))))
        count = chance.randint(1, 8)
        assert choose_set(scores, free, count) == tried(scores, free, count)


@given(st.data())
def test_the_best_set_is_that_of_brute_force_on_nodes_of_any_size(data: st.DataObject) -> None:
    gpus = data.draw(st.integers(1, 9))
    scores = score_links(
        gpus, data.draw(st.lists(LINKS, min_size=pairs(gpus), max_size=pairs(gpus)))
    )
    free = tuple(sorted(data.draw(st.sets(st.integers(0, gpus - 1)))))
    count = data.draw(st.integers(1, gpus + 1))
    assert choose_set(scores, free, count) == tried(scores, free, count)


def islands(*sizes: int, nvlinks: int = 4) -> tuple[tuple[int, ...], ...]:
    """GPUs in islands of NVLinks, one behind the other."""
    island = [number for number, size in enumerate(sizes) for _ in range(size)]
    links = [
        GpuLink("s", nvlinks) if one == other else GpuLink("y")
        for one, other in itertools.combinations(island, 2)
    ]
    return score_links(len(island), links)


def test_pairs_stay_in_one_island_until_none_has_two_gpus_left() -> None:
    scores, free = islands(4, 4), set(range(8))
    for _ in range(4):
        found = choose_set(scores, tuple(sorted(free)), 2)
        assert found
        assert len({gpu // 4 for gpu in found.gpus}) == 1
        free -= set(found.gpus)
    assert not free


def test_a_single_gpu_breaks_the_smaller_island() -> None:
    found = choose_set(islands(4, 2), tuple(range(6)), 1)
    assert found
    assert found.gpus == (4,)


def test_gpus_behind_one_switch_are_taken_in_order() -> None:
    alike = score_links(8, [GpuLink("n", 18)] * pairs(8))
    assert choose_set(alike, (1, 3, 4, 6), 2) == GpuSet((1, 3), 1820, 1820)


def test_only_aligned_sets_are_chosen_where_a_product_has_partitions() -> None:
    scores = islands(8)
    sizes = (1, 2, 4, 8)
    assert choose_set(scores, (1, 2, 3, 4, 6, 7), 2, sizes) == GpuSet((2, 3), 450, 2700)
    assert choose_set(scores, (1, 2, 5, 6), 2, sizes) is None
    assert choose_set(scores, tuple(range(8)), 3, sizes) is None
    for free in itertools.combinations(range(8), 5):
        for count in sizes:
            found = choose_set(scores, free, count, sizes)
            if found:
                assert found.gpus[0] % count == 0
                assert found.gpus == tuple(range(found.gpus[0], found.gpus[0] + count))
                assert set(found.gpus) <= set(free)


def test_a_node_of_more_gpus_than_all_sets_of_can_be_tried_keeps_to_islands() -> None:
    scores = islands(6, 10, 8)
    found = choose_set(scores, tuple(range(24)), 8)
    assert found
    assert found.gpus == tuple(range(16, 24))
    assert found.within == sum_within(scores, range(16, 24))


def test_the_scale_is_the_published_one() -> None:
    assert sorted(PCIE_SCORES.values()) == [0, 10, 20, 30, 40, 50, 60]
    assert score_links(2, [GpuLink("y", 18)])[0][1] == 10 + 18 * NVLINK_SCORE == 1810


@given(
    st.integers(0, 17).flatmap(
        lambda n: st.lists(LINKS, min_size=pairs(n), max_size=pairs(n)).map(
            lambda links: (n, links)
        )
    )
)
def test_links_are_read_as_they_were_written(case: tuple[int, list[GpuLink]]) -> None:
    gpus, links = case
    assert read_links(write_links(links), gpus) == tuple(links)


@pytest.mark.parametrize("text", ["", "s", "s2x", "s2y", "s2yyy", "2sy", "s y-", "s2-1y1000"])
def test_links_that_are_not_one_for_each_pair_are_not_read(text: str) -> None:
    assert read_links(text, 3) is None
