"""Python's view of the policies (SCH-0..6)."""

from __future__ import annotations

import pytest

from cgpu_native.policies import NATIVE_POLICY, POLICIES, WHOLE_PPM, entitle_containers
from cgpu_node.settings import rules

pytestmark = pytest.mark.unit


def test_each_policy_has_a_name_of_its_own() -> None:
    assert len(set(POLICIES.values())) == len(POLICIES)
    assert POLICIES[3] == "fixed"
    assert POLICIES[6] == "weighted fair"


def test_policies_are_typed_by_their_names() -> None:
    assert [name.replace("-", " ") for name in rules.POLICIES] == [*POLICIES.values()]
    for word in ("weighted-fair", "Weighted fair", "weighted_fair", "6"):
        assert rules.policy_of(word) == 6


def test_sch3_a_weight_of_6_in_20_is_a_ceiling_of_30_percent() -> None:
    assert [each.ceiling_ppm for each in entitle_containers(3, [6, 6, 6], 20)] == [300_000] * 3


@pytest.mark.parametrize("policy", [*{*POLICIES} - {NATIVE_POLICY}])
def test_fallback_parts_never_exceed_the_gpu(policy: int) -> None:
    for weights in ([1], [1, 2, 3], [20], [7] * 3, [1] * 25):
        parts = entitle_containers(policy, weights, 20)
        assert sum(part.fallback_ppm for part in parts) <= WHOLE_PPM
        assert all(part.fallback_ppm > 0 for part in parts)


@pytest.mark.parametrize(
    ("policy", "weights", "max_inst"),
    [(99, [1], 20), (-1, [1], 20), (0, [0], 20), (0, [1], 0)],
)
def test_what_is_out_of_range_is_refused(policy: int, weights: list[int], max_inst: int) -> None:
    with pytest.raises(ValueError, match="no entitlements"):
        entitle_containers(policy, weights, max_inst)
