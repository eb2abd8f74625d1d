"""Counts of the pods in units: the same in any order of events, and without what is gone."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpu_k8s.objects.policies import NodeUnit, Requirement, ResourcePolicy
from cgpu_k8s.scheduler.units import PolicyPod, UnitCounts

pytestmark = pytest.mark.unit

NODES = {name: {"pool": name} for name in "abc"}
UNITS = st.builds(
    lambda pool, most, cpu: NodeUnit(
        {"pool": pool}, most=most, most_resources={"cpu": Decimal(cpu)} if cpu else {}
    ),
    st.sampled_from("aabc"),
    st.sampled_from((None, 1, 2, 3)),
    st.sampled_from((0, 0, 2, 4)),
)
RULES = st.lists(UNITS, min_size=1, max_size=4).map(
    lambda units: ResourcePolicy("ml", "rule", "2026-01-01", (), tuple(units), keys=("hash",))
)
PODS = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.sampled_from("12"), st.sampled_from((0, 1, 2)), st.booleans()
    ),
    max_size=10,
).map(
    lambda found: [
        (
            PolicyPod(
                f"u{n}",
                "ml",
                created=f"2026-02-{n + 1:02}",
                labels={"hash": key},
                requests={"cpu": Decimal(cpu)},
                terminating=ends,
            ),
            NODES[node],
        )
        for n, (node, key, cpu, ends) in enumerate(found)
    ]
)


def state(counts: UnitCounts) -> list[Any]:
    return [(counts.assign_units((key,)), counts.count_units((key,))) for key in "12"]


@given(RULES, PODS, st.randoms(use_true_random=False))
def test_counts_do_not_depend_on_the_order_of_pods_and_forget_what_is_gone(
    rule: ResourcePolicy, pods: list[tuple[PolicyPod, dict[str, str]]], chance: random.Random
) -> None:
    counts, again, empty = (UnitCounts(rule) for _ in range(3))
    for each in pods:
        counts.update_pod(*each)
    for each in chance.sample(pods, len(pods)):
        again.update_pod(*each)
        again.update_pod(*each)
    assert state(counts) == state(again)
    kept = [each for each in pods if chance.random() < 0.5]
    for gone, _ in pods:
        if gone.uid not in {pod.uid for pod, _ in kept}:
            again.remove_pod(gone.uid)
            again.remove_pod(gone.uid)
    few = UnitCounts(rule)
    for each in kept:
        few.update_pod(*each)
    assert state(again) == state(few)
    for gone, _ in kept:
        again.remove_pod(gone.uid)
    assert state(again) == state(empty)


@given(RULES, PODS)
def test_pods_of_other_policies_and_namespaces_do_not_count(
    rule: ResourcePolicy, pods: list[tuple[PolicyPod, dict[str, str]]]
) -> None:
    rule = rule._replace(selector=(Requirement("app", "DoesNotExist"),))
    counts, others = UnitCounts(rule), UnitCounts(rule)
    for each, node in pods:
        counts.update_pod(each, node)
        others.update_pod(each, node)
        labels = {**each.labels, "app": "other"}
        others.update_pod(each._replace(uid=each.uid + "x", labels=labels), node)
        others.update_pod(each._replace(uid=each.uid + "y", namespace="other"), node)
    assert state(counts) == state(others)
