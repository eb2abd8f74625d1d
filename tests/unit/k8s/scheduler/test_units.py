"""Units of nodes: which one is in force for a pod, and what is counted in each."""

from __future__ import annotations

import itertools
import random
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpu_k8s.objects.policies import (
    AFTER_ALL,
    BEFORE_NEXT,
    LACK_AND_NO_TERMINATING,
    LACK_OR_MAX,
    MAX_ONLY,
    NEXT_POLICIES,
    PREFER,
    REQUIRED,
    TIMEOUT_OR_MAX,
    NodeUnit,
    Requirement,
    ResourcePolicy,
)
from cgpu_k8s.scheduler.policies.unit_counts import UnitCounts
from cgpu_k8s.scheduler.units import (
    Attempt,
    PolicyPod,
    UnitChoice,
    UnitCount,
    choose_unit,
    describe_unused,
    has_node,
    read_key,
)

pytestmark = pytest.mark.unit

NODES = {
    "a": {"pool": "a"},
    "b": {"pool": "b"},
    "c": {"pool": "c"},
    "virtual": {"type": "virtual-kubelet"},
}


def unit(pool: str, most: int | None = None, **more: Any) -> NodeUnit:
    return NodeUnit({"pool": pool}, most=most, **more)


def policy(*units: NodeUnit, **more: Any) -> ResourcePolicy:
    return ResourcePolicy("ml", "rule", "2026-01-01", (), units, **more)


def pod(uid: str = "new", created: str = "2026-02-01", **more: Any) -> PolicyPod:
    return PolicyPod(uid, "ml", more.pop("labels", {}), created=created, **more)


def choose(
    rule: ResourcePolicy,
    nodes: str,
    have: dict[str, str] | None = None,
    waits: dict[int, float] | None = None,
    now: float = 0.0,
    **more: Any,
) -> UnitChoice:
    """The choice where these nodes have room, and pods (by UID) are on nodes."""
    counts = UnitCounts(rule)
    for uid, node in (have or {}).items():
        counts.update_pod(pod(uid), NODES[node])
    fitting = {name: NODES[name] for name in nodes.split()}
    return choose_unit(
        rule, counts.count_units(()), Attempt(pod(**more), now, waits or {}), fitting
    )


def test_the_first_unit_with_room_is_in_force() -> None:
    rule = policy(unit("a"), unit("b"), unit("c"))
    assert choose(rule, "a b c")[:3] == (0, ("a",), "")
    found = choose(rule, "b c")
    assert found[:2] == (1, ("b",))
    assert found.reason == "ResourcePolicy rule: unit 1 has no node with room"


def test_a_unit_at_its_max_is_passed_over_by_every_policy() -> None:
    for following in NEXT_POLICIES:
        rule = policy(unit("a", 1), unit("b"), next_policy=following)
        found = choose(rule, "a b", {"u": "a"})
        assert found[:2] == (1, ("b",))
        assert found.reason == "ResourcePolicy rule: unit 1 has 1 of its 1 pods"


def test_a_unit_takes_only_as_much_as_its_max_resources() -> None:
    rule = policy(unit("a", most_resources={"cpu": Decimal(4)}), unit("b"))
    counts = UnitCounts(rule)
    counts.update_pod(pod("u", requests={"cpu": Decimal(3)}), NODES["a"])
    fitting = {name: NODES[name] for name in "ab"}

    def chosen(requests: dict[str, Decimal]) -> UnitChoice:
        return choose_unit(rule, counts.count_units(()), Attempt(pod(requests=requests)), fitting)

    assert chosen({"cpu": Decimal(1)}).unit == 0
    assert chosen({}).unit == 0
    found = chosen({"cpu": Decimal("1.5")})
    assert (found.unit, found.reason) == (1, "ResourcePolicy rule: unit 1 has 3 of its 4 of cpu")


def test_nodes_outside_all_units_come_last_or_never() -> None:
    assert choose(policy(unit("a")), "c")[:2] == (1, ("c",))
    found = choose(policy(unit("a"), strategy=REQUIRED), "c")
    assert found[:2] == (1, ())
    assert found.reason == ("ResourcePolicy rule: unit 1 has no node with room; no other node may")


def test_nodes_of_a_unit_at_its_max_are_not_outside_of_all_units() -> None:
    found = choose(policy(unit("a", 1), strategy=PREFER), "a", {"u": "a"})
    assert found[:2] == (1, ())


def test_a_unit_of_virtual_nodes_has_these_alone() -> None:
    rule = policy(NodeUnit({}), NodeUnit({}, resource="eci"))
    assert choose(rule, "virtual a")[:2] == (0, ("a",))
    assert choose(rule, "virtual")[:2] == (1, ("virtual",))


def test_a_limited_unit_that_lacks_room_is_waited_for_where_only_its_max_leads_on() -> None:
    limited = policy(unit("a", 5), unit("b"), next_policy=MAX_ONLY)
    assert choose(limited, "b")[:2] == (0, ())
    assert choose(policy(unit("a"), unit("b"), next_policy=MAX_ONLY), "b")[:2] == (1, ("b",))


def test_a_pod_waits_in_each_unit_until_its_time_is_over() -> None:
    rule = policy(unit("a"), unit("b"), unit("c"), next_policy=TIMEOUT_OR_MAX, timeout=10.0)
    first = choose(rule, "c", now=100.0)
    assert (first.unit, first.nodes, first.again) == (0, (), 110.0)
    early = choose(rule, "c", waits=dict(first.waits), now=109.9)
    assert (early.unit, early.again) == (0, 110.0)
    second = choose(rule, "c", waits=dict(early.waits), now=110.0)
    assert (second.unit, second.nodes, second.again) == (1, (), 120.0)
    third = choose(rule, "c", waits=dict(second.waits), now=120.0)
    assert (third.unit, third.nodes) == (2, ("c",))
    assert choose(rule, "a c", waits=dict(second.waits), now=121.0).nodes == ("a",)


def test_a_unit_whose_pods_are_ending_is_waited_for() -> None:
    rule = policy(unit("a"), unit("b"), next_policy=LACK_AND_NO_TERMINATING)
    counts = UnitCounts(rule)
    counts.update_pod(pod("u", terminating=True), NODES["a"])
    fitting = {"b": NODES["b"]}
    found = choose_unit(rule, counts.count_units(()), Attempt(pod()), fitting)
    assert found[:2] == (0, ())
    assert found.reason.endswith("unit 1 has no node with room, and 1 of its pods are ending")
    counts.remove_pod("u")
    others = choose_unit(rule, counts.count_units(()), Attempt(pod()), fitting)
    assert others[:2] == (1, ("b",))
    # Who has waited may be asked about with nodes that kube-scheduler chose before the pod's end.
    again = choose_unit(rule, counts.count_units(()), Attempt(pod(), 7.0, found.waits), fitting)
    assert (again.unit, again.nodes, again.again) == (0, (), 7.0)
    assert again.reason.endswith("and its last pod has just ended")


def test_pods_are_evicted_in_a_unit_before_the_next_one_is_tried_where_that_is_asked_for() -> None:
    rule = policy(unit("a"), unit("b"), preempt=BEFORE_NEXT)
    first = choose(rule, "b")
    assert first[:2] == (0, ())
    assert choose(rule, "b", waits=dict(first.waits))[:2] == (1, ("b",))
    assert choose(policy(unit("a"), unit("b"), preempt=AFTER_ALL), "b")[:2] == (1, ("b",))


def test_pods_from_before_the_policy_are_counted_unless_they_are_ignored() -> None:
    for ignored in (False, True):
        counts = UnitCounts(policy(unit("a"), ignores_previous=ignored))
        counts.update_pod(pod("old", created="2025-12-31"), NODES["a"])
        counts.update_pod(pod("new", created="2026-01-01"), NODES["a"])
        assert counts.count_units(())[0].pods == 2 - ignored


def test_pods_that_end_are_not_counted_unless_they_are_asked_for() -> None:
    for ignored in (False, True):
        counts = UnitCounts(policy(unit("a"), ignores_terminating=ignored))
        counts.update_pod(pod("ends", terminating=True), NODES["a"])
        assert counts.count_units(())[0] == UnitCount(int(not ignored), {}, 1)


def test_only_pods_with_the_labels_of_a_unit_count_in_it() -> None:
    rule = policy(unit("a", labels={"tier": "1"}), unit("a", annotations={"x": "y"}))
    counts = UnitCounts(rule)
    counts.update_pod(pod("one", labels={"tier": "1"}), NODES["a"])
    counts.update_pod(pod("two", annotations={"x": "y"}), NODES["a"])
    counts.update_pod(pod("three"), NODES["a"])
    assert [count.pods for count in counts.count_units(())] == [1, 1]
    assert counts.assign_units(()) == {"one": 0, "two": 1, "three": 2}


def test_pods_are_counted_apart_by_the_values_of_labels() -> None:
    rule = policy(unit("a", 1), unit("b"), keys=("hash",))
    counts = UnitCounts(rule)
    counts.update_pod(pod("u", labels={"hash": "1"}), NODES["a"])
    assert counts.count_units(("1",))[0].pods == 1
    assert counts.count_units(("2",))[0].pods == 0
    assert read_key(rule, {"hash": "2"}) == (("2",), "")
    assert read_key(rule, {}) == (
        None,
        "ResourcePolicy rule: matchLabelKeys has hash, and the pod has no such label",
    )


def test_two_units_of_the_same_nodes_take_one_after_the_other() -> None:
    rule = policy(unit("a", 2), unit("a", 1), strategy=REQUIRED)
    counts = UnitCounts(rule)
    taken = []
    for number in range(4):
        found = choose_unit(rule, counts.count_units(()), Attempt(pod()), {"a": NODES["a"]})
        taken.append(found.unit if found.nodes else None)
        if found.nodes:
            counts.update_pod(pod(f"u{number}"), NODES["a"])
    assert taken == [0, 0, 1, None]


def test_the_last_unit_costs_least_to_scale_in() -> None:
    counts = UnitCounts(policy(unit("a"), unit("b")))
    for uid, node in (("one", "a"), ("two", "b"), ("three", "c")):
        counts.update_pod(pod(uid), NODES[node])
    costs = counts.list_costs()
    assert costs["one"] > costs["two"] > costs["three"] == 0


def test_what_leads_to_nothing_is_described() -> None:
    rule = policy(unit("a"), unit("z"))._replace(selector=(Requirement("app", "Exists"),))
    assert describe_unused(rule, NODES.values(), [{"x": "y"}]) == [
        "spec.units[1]: no node matches it",
        "spec.selector: it selects no pod of the namespace",
    ]
    assert describe_unused(rule, [*NODES.values(), {"pool": "z"}], [{"app": "x"}]) == []


UNITS = st.builds(
    lambda pool, most, cpu: unit(pool, most, most_resources={"cpu": Decimal(cpu)} if cpu else {}),
    st.sampled_from("aabc"),
    st.sampled_from((None, 1, 2, 3)),
    st.sampled_from((0, 0, 2, 4)),
)
RULES = st.builds(
    lambda units, strategy, following: policy(
        *units, strategy=strategy, next_policy=following, timeout=5.0, keys=("hash",)
    ),
    st.lists(UNITS, min_size=1, max_size=4),
    st.sampled_from((PREFER, REQUIRED)),
    st.sampled_from((LACK_OR_MAX, MAX_ONLY, LACK_AND_NO_TERMINATING)),
)


def expected(rule: ResourcePolicy, counts: tuple[UnitCount, ...], cpu: int, room: str) -> set[str]:
    """The nodes a pod may go to, by the rules in words, for policies without time-outs."""
    for number, each in enumerate(rule.units):
        full = each.most is not None and counts[number].pods >= each.most
        used = counts[number].resources.get("cpu", Decimal(0)) + cpu
        full = full or used > each.most_resources.get("cpu", Decimal(10**6))
        here = {name for name in room if has_node(each, NODES[name])}
        if full:
            continue
        if here:
            return here
        if rule.next_policy == MAX_ONLY and each.is_limited:
            return set()
    if rule.strategy == REQUIRED:
        return set()
    return {name for name in room if not any(has_node(each, NODES[name]) for each in rule.units)}


@given(RULES, st.integers(0, 2**32))
def test_no_unit_ever_has_more_than_its_max_for_one_key(rule: ResourcePolicy, seed: int) -> None:
    chance = random.Random(seed)
    counts = UnitCounts(rule)
    for number in range(20):
        key = chance.choice("12")
        cpu = chance.choice((0, 1, 2))
        new = pod(
            f"u{number}",
            created=f"2026-02-{number + 1:02}",
            labels={"hash": key},
            requests={"cpu": Decimal(cpu)},
        )
        room = "".join(chance.sample("abc", chance.randint(0, 3)))
        before = counts.count_units((key,))
        found = choose_unit(rule, before, Attempt(new), {name: NODES[name] for name in room})
        assert set(found.nodes) == expected(rule, before, cpu, room)
        assert found.nodes or found.reason
        if found.nodes:
            counts.update_pod(new, NODES[chance.choice(found.nodes)])
        elif chance.random() < 0.3:
            counts.remove_pod(f"u{chance.randrange(20)}")
        for each in "12":
            for limits, count in zip(rule.units, counts.count_units((each,)), strict=True):
                assert limits.most is None or count.pods <= limits.most
                for name, most in limits.most_resources.items():
                    assert count.resources.get(name, Decimal(0)) <= most


def test_200_replicas_over_three_units_end_in_the_right_ones_and_scale_in_backwards() -> None:
    rule = policy(unit("a", 50), unit("b", 100), unit("c"))
    counts = UnitCounts(rule)
    for number in range(200):
        new = pod(f"u{number:03}", created=f"{number:03}")
        fitting = {name: NODES[name] for name in "abc"}
        found = choose_unit(rule, counts.count_units(()), Attempt(new), fitting)
        [node] = found.nodes
        counts.update_pod(new, NODES[node])
    assert [count.pods for count in counts.count_units(())] == [50, 100, 50]
    for left in range(199, 49, -1):
        costs = counts.list_costs()
        counts.remove_pod(min(costs, key=lambda uid: (costs[uid], uid)))
        first, second, third = (count.pods for count in counts.count_units(()))
        assert first + second + third == left
        assert third == 0 or second == 100
        assert second == 0 or first == 50


def test_every_unit_is_asked_in_every_order_of_room() -> None:
    rule = policy(unit("a", 1), unit("b", 1), unit("c", 1))
    for taken in itertools.product((0, 1), repeat=3):
        have = {name: name for name, full in zip("abc", taken, strict=True) if full}
        found = choose(rule, "a b c", have)
        first = next((n for n, full in enumerate(taken) if not full), 3)
        assert found.unit == first
        assert found.nodes == (() if first == 3 else ("abc"[first],))
