"""Counts of the pods in units: the same in any order of events, and without what is gone."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpu_k8s.objects.policies import NodeUnit, Requirement, ResourcePolicy
from cgpu_k8s.scheduler.policies import unit_counts
from cgpu_k8s.scheduler.policies.unit_counts import UnitCounts
from cgpu_k8s.scheduler.units import PolicyPod

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


@given(RULES, PODS, st.data())
def test_counts_are_those_of_all_pods_counted_anew_after_each_change(
    rule: ResourcePolicy, pods: list[tuple[PolicyPod, dict[str, str]]], data: st.DataObject
) -> None:
    counts, there = UnitCounts(rule), dict[str, tuple[PolicyPod, dict[str, str]]]()
    for _ in range(len(pods) * 2):
        pod, node = data.draw(st.sampled_from(pods))
        if pod.uid in there and data.draw(st.booleans()):
            counts.remove_pod(pod.uid)
            del there[pod.uid]
        else:
            node = data.draw(st.sampled_from((node, NODES["a"])))
            counts.update_pod(pod, node)
            there[pod.uid] = pod, node
        anew = UnitCounts(rule)
        for each in there.values():
            anew.update_pod(*each)
        assert state(counts) == state(anew)
        assert counts.sum_units() == anew.sum_units()
        for uid in there:
            others = UnitCounts(rule)
            for each in there.values():
                if each[0].uid != uid:
                    others.update_pod(*each)
            for key in "12":
                assert counts.count_units((key,), without=uid) == others.count_units((key,))


def test_pods_that_come_and_go_in_units_with_room_are_not_counted_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[str] = []
    find_limit = unit_counts.find_limit

    def count(*words: Any) -> str:
        counted.append("")
        return find_limit(*words)

    monkeypatch.setattr(unit_counts, "find_limit", count)
    counts = UnitCounts(ResourcePolicy("ml", "rule", "", (), (NodeUnit({"pool": "a"}, most=999),)))
    made = [PolicyPod(f"u{n:03}", "ml", {}, created=f"{n:03}") for n in range(200)]
    for each in made:
        assert counts.count_units((), without=each.uid)[0].pods == len(counted)
        counts.update_pod(each, NODES["a"])
        counts.update_pod(each, NODES["a"])
    for each in made[:100]:
        counts.remove_pod(each.uid)
    assert counts.count_units(())[0].pods == 100
    assert len(counted) == 200
