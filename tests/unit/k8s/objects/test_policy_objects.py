"""ResourcePolicies as their objects have them; what cannot be followed gets a sentence. COS-9."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pytest

from cgpu_k8s.names import DELETION_COST, OWN_COST, RESERVED, RETRY
from cgpu_k8s.objects.policies import (
    BEFORE_NEXT,
    LACK_AND_NO_TERMINATING,
    TIMEOUT_OR_MAX,
    NodeUnit,
    PolicyError,
    Requirement,
    ResourcePolicy,
    match_labels,
    read_amount,
    read_policy,
)

pytestmark = pytest.mark.unit


def item(**spec: Any) -> dict[str, Any]:
    meta = {"namespace": "ml", "name": "rule", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": meta, "spec": {"units": [{}], **spec}}


def test_a_policy_is_read_with_all_its_members() -> None:
    spec = item(
        selector={"app": "x"},
        strategy="required",
        ignorePreviousPod=True,
        ignoreTerminatingPod=False,
        matchLabelKeys=["pod-template-hash"],
        preemptPolicy="BeforeNextUnit",
        whenTryNextUnits={"policy": "TimeoutOrExceedMax", "timeout": "1h2m3s"},
        units=[
            {
                "nodeSelector": {"pool": "a"},
                "max": 5,
                "maxResources": {"cpu": "500m", "memory": "4Gi", "aliyun.com/gpu-mem": 8},
                "resource": "ecs",
                "podLabels": {"tier": "1"},
                "podAnnotations": {"x": "y"},
            },
            {"resource": "eci"},
        ],
    )
    limits = {"cpu": Decimal("0.5"), "memory": Decimal(4 << 30), "aliyun.com/gpu-mem": Decimal(8)}
    assert read_policy(spec) == ResourcePolicy(
        "ml",
        "rule",
        "2026-01-01T00:00:00Z",
        (Requirement("app", "In", ("x",)),),
        (
            NodeUnit({"pool": "a"}, "ecs", 5, limits, {"tier": "1"}, {"x": "y"}),
            NodeUnit({}, "eci"),
        ),
        "required",
        TIMEOUT_OR_MAX,
        3723.0,
        ("pod-template-hash",),
        ignores_previous=True,
        ignores_terminating=False,
        preempt=BEFORE_NEXT,
    )


def test_what_a_policy_leaves_out_has_the_published_defaults() -> None:
    expected = ResourcePolicy("ml", "rule", "2026-01-01T00:00:00Z", (), (NodeUnit({}),))
    assert read_policy(item()) == expected
    assert expected[5:] == (
        "prefer",
        "LackResourceOrExceedMax",
        900.0,
        (),
        False,
        True,
        "AfterAllUnits",
    )


def test_both_spellings_of_a_policy_are_accepted() -> None:
    for spelling in ("LackResourceAndNoTerminating", "LackResourceAndNoterminating"):
        found = read_policy(item(whenTryNextUnits={"policy": spelling}))
        assert found.next_policy == LACK_AND_NO_TERMINATING


@pytest.mark.parametrize(
    ("selector", "matching", "other"),
    [
        ({}, {}, None),
        ({"a": "1", "b": "2"}, {"a": "1", "b": "2", "c": "3"}, {"a": "1"}),
        ({"matchLabels": {"a": "1"}}, {"a": "1"}, {"a": "2"}),
        (
            {"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]},
            {"a": "2"},
            {},
        ),
        (
            {"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]},
            {},
            {"a": "1"},
        ),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, {"a": ""}, {"b": ""}),
        ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, {"b": ""}, {"a": ""}),
        ({"matchLabels": "x"}, {"matchLabels": "x"}, {}),
    ],
)
def test_a_selector_has_labels_or_expressions(
    selector: dict[str, Any], matching: dict[str, str], other: dict[str, str] | None
) -> None:
    found = read_policy(item(selector=selector)).selector
    assert match_labels(found, matching)
    assert other is None or not match_labels(found, other)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"units": []}, "spec.units: expected at least one unit"),
        ({"units": [{}] * 65}, "spec.units: expected at most 64, got 65"),
        ({"units": [{"max": 0}]}, "spec.units[0].max=0: expected a whole number from 1, or no max"),
        (
            {"units": [{"max": -1}]},
            "spec.units[0].max=-1: expected a whole number from 1, or no max",
        ),
        (
            {"units": [{"max": True}]},
            "spec.units[0].max=True: expected a whole number from 1, or no max",
        ),
        ({"units": [{}, {"maxx": 1}]}, "spec.units[1].maxx: no such field: did you mean max?"),
        ({"unit": []}, "spec.unit: no such field: did you mean units?"),
        (
            {"units": [{"maxResources": {"cpu": "0"}}]},
            "spec.units[0].maxResources.cpu=0: expected an amount above 0",
        ),
        (
            {"units": [{"resource": "ecss"}]},
            (
                "spec.units[0].resource=ecss: expected one of ecs, eci, acs, elastic:"
                " did you mean ecs?"
            ),
        ),
        ({"strategy": "x"}, "spec.strategy=x: expected one of prefer, required"),
        (
            {"preemptPolicy": "AfterAllUnit"},
            (
                "spec.preemptPolicy=AfterAllUnit: expected one of AfterAllUnits, BeforeNextUnit:"
                " did you mean AfterAllUnits?"
            ),
        ),
        (
            {"whenTryNextUnits": {"timeout": "15"}},
            "spec.whenTryNextUnits.timeout=15: expected hours, minutes and seconds, such as 15m",
        ),
        (
            {"whenTryNextUnits": {"time": "1m"}},
            "spec.whenTryNextUnits.time: no such field: did you mean timeout?",
        ),
        ({"matchLabelKeys": [1]}, "spec.matchLabelKeys: expected names of labels"),
        (
            {"selector": {"matchExpressions": [{"key": "a", "operator": "in"}]}},
            "operator=in: expected one of In, NotIn, Exists, DoesNotExist",
        ),
        (
            {"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
            "spec.selector.matchExpressions: expected values with In",
        ),
        (
            {"selector": {"matchExpressions": [], "app": "x"}},
            "spec.selector.app: no such field",
        ),
        ({"selector": []}, "selector: expected an object, got list"),
    ],
)
def test_a_policy_that_cannot_be_followed_gets_a_sentence(
    spec: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(PolicyError) as error:
        read_policy(item(**spec))
    assert str(error.value) == sentence


@pytest.mark.parametrize("name", [*RESERVED, OWN_COST, RETRY, "cgpu/new"])
def test_a_unit_gives_its_pods_nothing_that_only_the_scheduler_may_write(name: str) -> None:
    """The scheduler's account, which writes it, may set what the guard forbids others."""
    with pytest.raises(PolicyError, match=re.escape(f"podAnnotations.{name}: only cgpu")):
        read_policy(item(units=[{"podAnnotations": {name: "x"}}]))


def test_a_unit_has_the_deletion_cost_of_its_place() -> None:
    """A cost of its own would be replaced, and its pods would no longer count."""
    where = f"spec.units[0].podAnnotations.{DELETION_COST}"
    with pytest.raises(PolicyError) as error:
        read_policy(item(units=[{"podAnnotations": {DELETION_COST: "5"}}]))
    assert str(error.value) == f"{where}: it follows from the order of the units"


@pytest.mark.parametrize(
    "name", ["a", "A_b.c-9", "example.com/a", "a" * 63, f"{'a' * 249}.com/a", "9/9"]
)
def test_names_of_labels_and_annotations_are_kubernetes_own(name: str) -> None:
    [unit] = read_policy(
        item(units=[{"podLabels": {name: ""}, "podAnnotations": {name: ""}}])
    ).units
    assert unit.labels == unit.annotations == {name: ""}
    [unit] = read_policy(item(units=[{"podAnnotations": {"Example.COM/a": "any value\n"}}])).units
    assert unit.annotations == {"Example.COM/a": "any value\n"}


@pytest.mark.parametrize(
    "name",
    ["", "/", "a/", "/a", "a/b/c", "-a", "a-", "a b", "a\n", "ä", "a" * 64, "a..b/c", "-a.b/c",
     f"{'a' * 250}.com/a", "a_b/c"],
)  # fmt: skip
@pytest.mark.parametrize("member", ["podLabels", "podAnnotations"])
def test_a_name_that_kubernetes_refuses_is_refused(member: str, name: str) -> None:
    with pytest.raises(PolicyError, match=f"{member}.*: expected a name such as example.com/name"):
        read_policy(item(units=[{member: {name: "x"}}]))


def test_labels_are_no_less_checked() -> None:
    for name, sentence in {
        "Example.COM/a": "expected a name such as example.com/name",
        "cgpu/a": "only cgpu may set what begins with cgpu/",
    }.items():
        with pytest.raises(PolicyError, match=sentence):
            read_policy(item(units=[{"podLabels": {name: "x"}}]))


@pytest.mark.parametrize("value", ["", "x", "-1", "1e", "1Zi", None, 1.5, True])
def test_what_is_no_amount_is_not_read(value: object) -> None:
    assert read_amount(value) is None
