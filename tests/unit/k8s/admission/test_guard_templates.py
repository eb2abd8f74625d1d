"""K8S-2: the rules for pods hold for what they are made from, in both forms and the same words."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from cgpu_k8s.admission.rules import TEMPLATES, Review, find_refusal
from cgpu_k8s.admission.webhooks import CONDITIONS, FIRST, POLICIES, VERSIONS
from lab.kubernetes.cel import HOOKS, SETTINGS, asked, both, created, denied
from lab.kubernetes.manifests import (
    CONTROLLERS,
    CORE,
    IMPOSSIBLE,
    asking,
    container,
    controller,
    of,
    pod,
)

pytestmark = pytest.mark.unit

UNASKED = of({"name": "main"})


def applied(plural: str, item: Any, before: Any = None) -> Review:
    """Somebody creates what makes such pods, or changes it from what made others."""
    made, was = (each and controller(plural, each) for each in (item, before))
    return Review("UPDATE" if before else "CREATE", plural, "alice", made, was)


def test_every_kind_that_makes_pods_is_ruled() -> None:
    assert {*TEMPLATES.resources} == CONTROLLERS.keys()


@pytest.mark.parametrize("plural", CONTROLLERS)
@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_no_gpu_could_give_is_refused_where_it_is_applied(name: str, plural: str) -> None:
    sentence = find_refusal(created(IMPOSSIBLE[name]), SETTINGS)
    assert both(applied(plural, IMPOSSIBLE[name])) == (sentence, sentence)


@pytest.mark.parametrize("plural", CONTROLLERS)
def test_possible_templates_are_let_in_with_or_without_a_scheduler(plural: str) -> None:
    for scheduler in ("", "default-scheduler", "cgpu-scheduler", "ack-co-scheduler"):
        item = asking("2", "30")
        item["spec"]["schedulerName"] = scheduler
        assert both(applied(plural, item)) == ("", "")
    del item["spec"]["schedulerName"]
    assert both(applied(plural, item)) == ("", "")
    assert both(applied(plural, UNASKED)) == ("", "")


@pytest.mark.parametrize("plural", CONTROLLERS)
def test_pods_that_would_be_refused_for_anything_else_are_refused_too(plural: str) -> None:
    for spec in ({"schedulerName": "mine"}, {"nodeName": "gpu-a"}):
        item = pod("p", 2)
        item["spec"] |= spec
        assert all(both(applied(plural, item)))
    item = pod("p", 2)
    item["metadata"]["annotations"] = {"cgpu/allocation": "{}"}
    assert both(applied(plural, item))[0] == (
        "annotation cgpu/allocation: only cgpu's scheduler may set it"
    )


@pytest.mark.parametrize("plural", CONTROLLERS)
def test_what_is_there_already_may_change_but_break_no_other_rule(plural: str) -> None:
    wrong = IMPOSSIBLE["core 33"]
    kept = applied(plural, wrong, wrong)
    kept.item["metadata"]["finalizers"] = []
    kept.item["spec"]["replicas"] = 2
    assert both(kept) == ("", "")
    for minor in (CONDITIONS, POLICIES):
        assert asked(kept, minor) == set()
    other = copy.deepcopy(wrong)
    other["spec"]["containers"][0]["command"] = ["another"]
    for item in (other, IMPOSSIBLE["whole GPUs too"], UNASKED):
        assert both(applied(plural, item, wrong)) == ("", "")
    assert CORE in both(applied(plural, wrong, UNASKED))[0]
    other["spec"]["nodeName"] = "gpu-a"
    assert "nodeName=gpu-a: expected none" in both(applied(plural, other, wrong))[0]
    other["metadata"]["annotations"] = {"cgpu/allocation": "{}"}
    assert "annotation cgpu/allocation" in both(applied(plural, other, wrong))[0]


@pytest.mark.parametrize("plural", CONTROLLERS)
@pytest.mark.parametrize(
    "wrong", [IMPOSSIBLE["core 33"], of(container({"aliyun.com/gpu_mem": "1"}))]
)
def test_what_a_controller_makes_or_makes_no_pods_now_is_let_in(plural: str, wrong: Any) -> None:
    """A Deployment's ReplicaSet, and what is restored at 0 or suspended."""
    owner = {"kind": "x", "name": "x", "uid": "x"}
    for meta, spec, refused in (
        ({}, {}, True),
        ({"ownerReferences": [owner, {**owner, "controller": False}]}, {}, True),
        ({"ownerReferences": [owner, {**owner, "controller": True}]}, {}, False),
        ({}, {"replicas": 1, "suspend": False}, True),
        ({}, {"replicas": 0}, False),
        ({}, {"suspend": True}, False),
    ):
        for before in (None, UNASKED):
            review = applied(plural, wrong, before)
            review.item["metadata"] |= meta
            review.item["spec"] |= spec
            assert bool(both(review)[0]) == refused
            assert refused or asked(review, CONDITIONS) == set()


@pytest.mark.parametrize("plural", CONTROLLERS)
def test_a_guard_that_is_away_stops_no_template(plural: str) -> None:
    for minor in VERSIONS:
        for item in (IMPOSSIBLE["core 33"], pod("p", 2), UNASKED):
            assert asked(applied(plural, item), minor) <= {"Ignore"}
    for minor in (CONDITIONS, POLICIES):
        assert asked(applied(plural, UNASKED), minor) == set()
    assert asked(applied(plural, UNASKED), FIRST) == {"Ignore"}


@pytest.mark.parametrize("part", ["scale", "status"])
def test_no_part_of_what_makes_pods_is_ruled(part: str) -> None:
    item = controller("deployments", IMPOSSIBLE["core 33"])
    review = Review("UPDATE", f"deployments/{part}", "alice", item, {})
    assert (find_refusal(review, SETTINGS), denied(review)) == ("", "")
    assert all(asked(review, minor) == set() for minor in HOOKS)
