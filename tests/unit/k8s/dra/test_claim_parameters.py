"""The parameters of a claim or its DeviceClass: weight and priority. DRA-8."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest

from cgpu_env.errors import CgpuError
from cgpu_k8s.dra.claims import FIXED, WEIGHTED_FAIR, ClaimGrant, read_grant
from lab.cluster.claims import CLAIM, GPUS, NODE, allocated, configured, result

pytestmark = pytest.mark.unit

FIELDS = "apiVersion, kind, weight, priority"
NESTED = functools.reduce(lambda inner, _: [inner], range(5000), list[Any]())


def granted(*configs: Any, cores: str = "0", policy: int = WEIGHTED_FAIR) -> ClaimGrant:
    """A claim for one GPU."""
    item = allocated(result(cores=cores), config=[*configs])
    return read_grant(CLAIM, item, NODE, GPUS, policy)


def of_class(*requests: str, **parameters: Any) -> Any:
    return configured(*requests, source="FromClass", **parameters)


@pytest.mark.parametrize("weight", [1, 4, 20])
def test_dra_8_a_claim_without_cores_has_the_weight_of_its_class(weight: int) -> None:
    assert granted(of_class(weight=weight)).request.weight == weight
    assert granted(of_class(weight=weight), configured(weight=weight)).request.weight == weight


def test_dra_8_no_claim_gives_itself_weight() -> None:
    """The scheduler does not count it: a claim of 1 MiB would shut others out of a GPU."""
    for configs, allowed in (([], "no weight"), ([of_class(weight=3)], "at most 3")):
        with pytest.raises(CgpuError, match=f"weight=4: .* gives it: expected {allowed}, cores,"):
            granted(*configs, configured(weight=4))
    with pytest.raises(CgpuError, match=r"weight=1: .* only a DeviceClass gives it"):
        granted(configured(weight=1))
    lowered = granted(of_class(weight=8), configured(weight=2), configured(weight=5))
    assert lowered.request.weight == 5


def test_dra_8_without_parameters_a_claim_has_no_weight_and_normal_priority() -> None:
    for request in (granted().request, granted(configured()).request):
        assert (request.weight, request.high_priority) == (0, False)


def test_dra_8_the_claims_weight_overrides_its_classs() -> None:
    assert granted(of_class(weight=8), configured(weight=2)).request.weight == 2
    found = granted(of_class(weight=8, priority="high"), configured(weight=2)).request
    assert (found.weight, found.high_priority) == (2, True)  # each field for itself


def test_dra_8_a_class_gives_high_priority_and_a_claim_may_decline_it() -> None:
    assert granted(of_class(priority="high")).request.high_priority
    assert granted(of_class(priority="high"), configured(priority="high")).request.high_priority
    declined = granted(of_class(priority="high"), configured(priority="normal"))
    assert not declined.request.high_priority


@pytest.mark.parametrize("source", ["FromClaim", "", "fromclass", None])
def test_dra_8_no_claim_gives_itself_high_priority(source: Any) -> None:
    config = {**configured(priority="high"), "source": source}
    with pytest.raises(CgpuError, match=r"priority=high: .* only a DeviceClass gives it"):
        granted(config)
    with pytest.raises(CgpuError, match="only a DeviceClass gives it"):
        granted(config, of_class(priority="high"))  # in no order that a scheduler writes


def test_dra_8_parameters_are_of_the_requests_that_they_name() -> None:
    item = allocated(
        result(0, request="a", cores="0"),
        result(1, request="b/second", cores="0"),
        config=[of_class("a", weight=2), of_class("b", weight=2), of_class("c", weight=9)],
    )
    assert read_grant(CLAIM, item, NODE, GPUS, WEIGHTED_FAIR).request.weight == 2
    item["status"]["allocation"]["devices"]["config"][1]["requests"] = ["b/second"]
    assert read_grant(CLAIM, item, NODE, GPUS, WEIGHTED_FAIR).request.weight == 2
    item["status"]["allocation"]["devices"]["config"][1]["requests"] = ["b/first"]
    with pytest.raises(CgpuError, match="weight=2, none: a claim has one weight and one priority"):
        read_grant(CLAIM, item, NODE, GPUS, WEIGHTED_FAIR)


def test_dra_8_a_claim_has_one_priority_on_all_its_gpus() -> None:
    config = [of_class("b", priority="high")]
    item = allocated(result(0, request="a"), result(1, request="b"), config=config)
    with pytest.raises(CgpuError, match="its requests have different priorities"):
        read_grant(CLAIM, item, NODE, GPUS, WEIGHTED_FAIR)


def test_dra_8_cores_are_a_promise_that_a_weight_does_not_change() -> None:
    assert granted(of_class(weight=20), cores="30").request.weight == 6
    with pytest.raises(CgpuError, match="weight=4: it claims cores=30, which are a weight of 6"):
        granted(of_class(weight=20), configured(weight=4), cores="30")


def test_dra_8_under_fixed_a_weight_is_no_claim_of_time() -> None:
    """The scheduler does not count it."""
    with pytest.raises(CgpuError, match="it claims no cores"):
        granted(of_class(weight=4), policy=FIXED)


def test_only_the_allocations_config_counts() -> None:
    item = allocated(result(cores="0"))
    item["spec"] = {"devices": {"config": [configured(weight=20, priority="high")]}}
    found = read_grant(CLAIM, item, NODE, GPUS, WEIGHTED_FAIR).request
    assert (found.weight, found.high_priority) == (0, False)


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"weight": 0}, "weight=0: expected a whole number from 1 to 20"),
        ({"weight": 21}, "weight=21: expected a whole number from 1 to 20"),
        ({"weight": True}, "weight=True: expected a whole number from 1 to 20"),
        ({"weight": "4"}, "weight=4: expected a whole number from 1 to 20"),
        ({"weight": 1.5}, "weight=1.5: expected a whole number from 1 to 20"),
        ({"weight": None}, "weight=None: expected a whole number from 1 to 20"),
        ({"priority": "urgent"}, "priority=urgent: expected normal or high"),
        ({"priority": 1}, "priority=1: expected normal or high"),
        ({"priority": ["high"]}, "priority: expected a number or a text"),
        ({"weight": NESTED}, "weight: expected a number or a text"),
        ({"kind": NESTED}, "kind: expected a number or a text"),
        ({"wieght": 4}, f"unknown field wieght: expected {FIELDS}: did you mean weight?"),
        ({"policy": "fixed"}, f"unknown field policy: expected {FIELDS}"),
        ({"kind": "Gpu"}, "kind is Gpu: expected GpuConfig"),
        ({"kind": None}, "kind is missing: expected GpuConfig"),
        ({"apiVersion": "v1"}, "apiVersion is v1: expected gpu.cgpu/v1alpha1"),
    ],
)
def test_dra_8_wrong_parameters_are_refused_by_name(
    parameters: dict[str, Any], sentence: str
) -> None:
    """Also those of a request that has nothing here."""
    for requests in ((), ("another",)):
        with pytest.raises(CgpuError) as failure:
            granted(configured(*requests, **parameters))
        assert str(failure.value) == f"claim ml/train: config of the claim: {sentence}"
        with pytest.raises(CgpuError, match=re.escape(f"config of its DeviceClass: {sentence}")):
            granted(of_class(*requests, **parameters))


@pytest.mark.parametrize("given", [None, "weight: 4", [], 4])
def test_dra_8_parameters_that_are_no_object_are_refused(given: Any) -> None:
    config = configured()
    config["opaque"]["parameters"] = given
    with pytest.raises(CgpuError, match="parameters: expected an object of the kind GpuConfig"):
        granted(config)
