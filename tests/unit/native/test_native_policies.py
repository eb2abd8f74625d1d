"""Python's view of the policies (SCH-0..6, DRA-2)."""

from __future__ import annotations

import pytest

from cgpu_native.policies import NATIVE_POLICY, POLICIES, WHOLE_PPM, entitle_containers
from cgpu_node.settings import rules

pytestmark = pytest.mark.unit

MIB = 1 << 20


def test_each_policy_has_a_name_of_its_own() -> None:
    assert len(set(POLICIES.values())) == len(POLICIES)
    assert POLICIES[3] == "fixed"
    assert POLICIES[6] == "weighted fair"


def test_policies_are_typed_by_their_names() -> None:
    assert [name.replace("-", " ") for name in rules.POLICIES] == [*POLICIES.values()]
    for word in ("weighted-fair", "Weighted fair", "weighted_fair", "6"):
        assert rules.policy_of(word) == 6


def test_sch3_a_weight_of_6_in_20_is_a_ceiling_of_30_percent() -> None:
    assert [each.ceiling_ppm for each in entitle_containers(3, [(6, 0)] * 3, 20)] == [300_000] * 3


@pytest.mark.parametrize("policy", [*{*POLICIES} - {NATIVE_POLICY}])
def test_fallback_parts_never_exceed_the_gpu(policy: int) -> None:
    for weights in ([1], [1, 2, 3], [20], [7] * 3, [1] * 25, [0], [20, *[0] * 19], [7, 0, 20]):
        parts = entitle_containers(policy, [(weight, MIB) for weight in weights], 20)
        assert sum(part.fallback_ppm for part in parts) <= WHOLE_PPM
        assert all(part.fallback_ppm > 0 for part in parts)


@pytest.mark.parametrize(
    ("policy", "weights", "max_inst"),
    [(99, [1], 20), (-1, [1], 20), (0, [-1], 20), (0, [1], 0)],
)
def test_what_is_out_of_range_is_refused(policy: int, weights: list[int], max_inst: int) -> None:
    with pytest.raises(ValueError, match="no entitlements"):
        entitle_containers(policy, [(weight, MIB) for weight in weights], max_inst)


@pytest.mark.parametrize(
    ("containers", "percent"),
    [
        ([(6, 9), (0, 4)], [30, 70]),
        ([(0, 4), (0, 8)], [33.35, 66.65]),
        ([(6, 9), (0, 4), (0, 8)], [30, 23.35, 46.65]),
        ([(6, 9), (10, 1), (0, 40)], [30, 50, 20]),
        ([(20, 1), (0, 4)], [99.5, 0.5]),
        ([(10, 1), (10, 1), (0, 4), (0, 4)], [49.8, 49.8, 0.2, 0.2]),
    ],
)
def test_dra_2_who_was_promised_no_time_shares_by_memory_what_is_left(
    containers: list[tuple[int, int]], percent: list[float]
) -> None:
    """Weights, and caps in GiB."""
    asked = [(weight, gib << 30) for weight, gib in containers]
    parts = [each.fallback_ppm / 10_000 for each in entitle_containers(6, asked, 20)]
    assert parts == pytest.approx(percent, abs=0.05)
    competes = [each.competes for each in entitle_containers(6, asked, 20)]
    assert [100 * each / sum(competes) for each in competes] == pytest.approx(percent, abs=0.05)
