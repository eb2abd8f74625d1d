"""No unit gets more than its max, whatever happens to answers, bindings, events and pods.

COS-1, COS-2, COS-4.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpu_k8s.objects import policies
from cgpu_k8s.objects.pods import Pod, read_pod
from cgpu_k8s.scheduler import units
from cgpu_k8s.scheduler.cache import SchedulerCache
from cgpu_k8s.scheduler.extender_api import ExtenderArgs
from cgpu_k8s.scheduler.placing import make_plain_allocation
from cgpu_k8s.scheduler.policies import policy_cache, unit_choices
from cgpu_k8s.scheduler.policies.policy_informer import read_known_policy
from cgpu_k8s.scheduler.policies.unit_choices import check_binding
from cgpu_k8s.scheduler.scheduling import Scheduling
from lab.worlds.extender import pod, policy

pytestmark = pytest.mark.unit

Json = dict[str, Any]
POOLS = "abc"


def make_pod(number: int, **labels: str) -> Pod:
    given_pod = pod(f"p{number}", None, app="x", **labels)
    given_pod["metadata"]["creationTimestamp"] = f"2026-02-01T00:00:{number % 60:02}Z"
    return read_pod(given_pod)


def make_cache(*rules: Json, nodes: dict[str, str]) -> SchedulerCache:
    cache = SchedulerCache()
    for name, pool in nodes.items():
        cache.policies.update_node(name, {"pool": pool})
    cache.policies.replace_policies(map(read_known_policy, rules))
    cache.replace_pods([])
    return cache


def unit(pool: str, **more: Any) -> Json:
    return {"nodeSelector": {"pool": pool}, **more}


def test_200_replicas_over_three_units_of_50_100_and_any_number_are_where_they_belong() -> None:
    """COS-1: bindings are seen late and in any order, and each tenth fails and is repeated."""
    chance = random.Random(1)
    nodes = {f"{pool}{n}": pool for pool in POOLS for n in range(10)}
    rule = policy(unit("a", max=50), unit("b", max=100), unit("c"), selector={"app": "x"})
    cache = make_cache(rule, nodes=nodes)
    now = 0.0
    scheduling = Scheduling(cache, clock=lambda: now)
    waiting, under_way = [make_pod(n) for n in range(200)], list[Pod]()
    chosen, where = list[tuple[Pod, str]](), dict[str, str]()
    while waiting or chosen:
        now += 1.0
        if waiting:  # each is asked about before the last ones are bound
            asked = waiting.pop(chance.randrange(len(waiting)))
            answer = scheduling.filter(ExtenderArgs(asked, [*nodes], None))["NodeNames"]
            chosen.append((asked, chance.choice(answer)))
        if waiting and chance.random() < 0.5:
            continue
        asked, node = chosen.pop(chance.randrange(len(chosen)))
        assert check_binding(cache.policies, asked, node) == ""
        cache.mark_sent(asked, make_plain_allocation(asked, node), now)
        if chance.random() < 0.1:
            cache.mark_refused(asked.uid)
            waiting.append(asked)
            continue
        where[asked.uid] = nodes[node]
        under_way.append(asked._replace(node=node))
        while under_way and chance.random() < 0.5:
            cache.update_pod(under_way.pop(chance.randrange(len(under_way))))
    assert Counter(where.values()) == {"a": 50, "b": 100, "c": 50}


class Cluster:
    """The pods as the API server has them, and a cache that hears of them late."""

    def __init__(self, rule: Json, keys: list[str], chance: random.Random) -> None:
        self.nodes = {f"{pool}{n}": pool for pool in POOLS for n in range(2)}
        self.rule, self.chance, self.now = rule, chance, 0.0
        self.cache = make_cache(rule, nodes=self.nodes)
        self.scheduling = Scheduling(self.cache, clock=lambda: self.now)
        self.there = {each.uid: each for each in map(make_pod, range(12))}
        for number, each in enumerate([*self.there.values()]):
            labels = {**each.labels, "hash": keys[number % len(keys)]}
            self.there[each.uid] = each._replace(labels=labels)
        self.maybe = dict[str, str]()  # where bindings without an answer may still arrive

    def ask(self, uid: str) -> list[str]:
        answer = self.scheduling.filter(ExtenderArgs(self.there[uid], [*self.nodes], None))
        found: list[str] = answer["NodeNames"]
        return found

    def bind(self, uid: str, node: str, outcome: str) -> None:
        """Send a binding, if it is allowed, as the extender does."""
        asked, policies = self.there[uid], self.cache.policies
        if check_binding(policies, asked, node):
            return
        self.cache.mark_sent(asked, make_plain_allocation(asked, node), self.now)
        if outcome == "refused" or asked.node:
            self.cache.mark_refused(uid)
        elif outcome == "late":
            self.maybe[uid] = node
        else:
            self.there[uid] = asked._replace(node=node)

    def arrive(self, uid: str) -> None:
        node = self.maybe.pop(uid, "")
        if node and uid in self.there and not self.there[uid].node:
            self.there[uid] = self.there[uid]._replace(node=node)

    def see(self, uid: str) -> None:
        if uid in self.there:
            self.cache.update_pod(self.there[uid])
        else:
            self.cache.remove_pod(uid)

    def act(self) -> None:
        self.now += 1.0
        uid = f"uid-p{self.chance.randrange(12)}"
        act = self.chance.choice(["ask", "bind", "any", "see", "arrive", "end", "delete", "rest"])
        if act == "see":
            self.see(uid)
        elif act == "arrive":
            self.arrive(uid)
        elif act == "rest":
            self.cache.forget_expired(self.now - 3)
            if self.chance.random() < 0.3:
                self.cache.replace_pods(self.there.values())
        elif uid not in self.there:
            return
        elif act == "end":
            self.there[uid] = self.there[uid]._replace(terminating=True)
        elif act == "delete":
            del self.there[uid]
        elif not self.there[uid].node:
            answer = self.ask(uid) if act != "any" else [*self.nodes]
            if act != "ask" and answer:
                outcome = self.chance.choice(["done", "refused", "late"])
                self.bind(uid, self.chance.choice(answer), outcome)

    def count(self) -> Counter[tuple[str, str]]:
        """The pods in each pool and with each hash."""
        there = [each for each in self.there.values() if each.node and not each.terminating]
        return Counter((self.nodes[each.node], each.labels["hash"]) for each in there)


@given(
    st.dictionaries(st.sampled_from(POOLS), st.integers(1, 3), min_size=1),
    st.sampled_from((["1"], ["1", "2"])),
    st.sampled_from(("prefer", "required")),
    st.randoms(use_true_random=False),
)
def test_no_unit_has_more_than_its_max_of_any_key_whatever_happens(
    limits: dict[str, int], keys: list[str], strategy: str, chance: random.Random
) -> None:
    """COS-2, COS-4."""
    most = [unit(pool, max=limit) for pool, limit in limits.items()]
    cluster = Cluster(policy(*most, matchLabelKeys=["hash"], strategy=strategy), keys, chance)
    for _ in range(80):
        cluster.act()
        for (pool, _), count in cluster.count().items():
            assert count <= limits.get(pool, 12)
            assert strategy == "prefer" or pool in limits
    for uid in [*cluster.maybe]:
        cluster.arrive(uid)
    for number in range(12):
        cluster.see(f"uid-p{number}")
    for uid in [*cluster.cache.policies.promised]:  # nothing is on its way any more
        cluster.cache.forget_pod(uid)
    counts = cluster.count()
    for uid, each in cluster.there.items():  # and what is free is given
        if not each.node:
            key = each.labels["hash"]
            room = [pool for pool, limit in limits.items() if counts[pool, key] < limit]
            rest = [pool for pool in POOLS if pool not in limits and strategy == "prefer"]
            found = {cluster.nodes[name] for name in cluster.ask(uid)}
            assert found == ({room[0]} if room else {*rest})
            cluster.cache.forget_pod(uid)


@pytest.mark.parametrize("count", [1, 50])
def test_an_answer_looks_at_each_node_for_one_policy_alone(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """COS-1: what an answer costs does not grow with policies times nodes."""
    calls = Counter[str]()

    def counted(name: str, function: Any) -> Any:
        def call(*given_values: Any) -> Any:
            calls[name] += 1
            return function(*given_values)

        return call

    for module in (units, unit_choices):
        monkeypatch.setattr(module, "has_node", counted("has_node", units.has_node))
    for module in (units, policy_cache):
        match = counted("match_labels", policies.match_labels)
        monkeypatch.setattr(module, "match_labels", match)
    nodes = {f"{n}": POOLS[n % 3] for n in range(1000)}
    rules = [
        policy(*map(unit, POOLS), name=f"rule-{n}", selector={"app": "x" if n == 0 else f"{n}"})
        for n in range(count)
    ]
    cache = make_cache(*rules, nodes=nodes)
    scheduling = Scheduling(cache)
    for number in range(100):
        cache.update_pod(make_pod(number)._replace(node=f"{number}"))
    calls.clear()
    assert scheduling.filter(ExtenderArgs(make_pod(200), [*nodes], None))["NodeNames"]
    assert calls["has_node"] <= 1000 + 200 * len(POOLS)  # nodes, and the pods when first counted
    calls.clear()
    assert scheduling.filter(ExtenderArgs(make_pod(201), [*nodes], None))["NodeNames"]
    assert calls["has_node"] <= 1000 + 3 * len(POOLS)
    assert calls["match_labels"] <= 8 * count


def test_a_pod_of_a_namespace_without_policy_is_not_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """COS-1."""
    cache = make_cache(policy(unit("a")), nodes={"a": "a"})
    other = make_pod(1)._replace(namespace="other")

    def refuse(*_: Any) -> Any:
        pytest.fail("asked")

    for module in (units, policy_cache, unit_choices):
        for name in ("match_labels", "make_policy_pod"):
            monkeypatch.setattr(module, name, refuse, raising=False)
    asked = ExtenderArgs(other, ["a", "b"], None)
    assert Scheduling(cache).filter(asked)["NodeNames"] == ["a", "b"]
    cache.update_pod(other)
    assert other.uid not in cache.policies.pods.get("ns", {})
    assert "other" not in cache.policies.pods


def test_an_event_of_a_policy_looks_at_each_pod_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """COS-1: many policies beside many pods hold up no call."""
    rules = [policy(unit("a"), name=f"rule-{n}", selector={"app": f"{n}"}) for n in range(50)]
    cache = make_cache(*rules, nodes={})
    for number in range(50):
        cache.update_pod(make_pod(number))
    calls = []
    match = policies._match_label  # noqa: SLF001
    monkeypatch.setattr(policies, "_match_label", lambda *each: calls.append(each) or match(*each))
    cache.policies.update_policy(read_known_policy(policy(unit("a"), selector={"app": "x"})))
    assert len(calls) == 50
    assert all(cache.policies.find_counted(f"uid-p{n}")[1] for n in range(50))
    cache.policies.remove_policy("ns", "rule")
    assert len(calls) == 50
    assert not any(cache.policies.find_counted(f"uid-p{n}")[1] for n in range(50))


@given(st.randoms(use_true_random=False))
def test_whatever_changed_before_the_oldest_policy_counts(chance: random.Random) -> None:
    """COS-1, COS-9 for the others."""
    cache = make_cache(policy(unit("a"), name="first", selector={"app": "y"}), nodes={"a": "a"})
    rules = dict[str, Json]()
    there = dict[int, Pod]()
    for _ in range(30):
        name, number = f"rule-{chance.randrange(4)}", chance.randrange(4)
        if chance.random() < 0.3:
            cache.policies.remove_policy("ns", name)
            rules.pop(name, None)
        elif chance.random() < 0.6:
            rules[name] = policy(
                unit("a", max=chance.choice((0, 1, 2))),
                name=name,
                created=f"2026-01-0{chance.randrange(3) + 1}T00:00:00Z",
                selector=chance.choice(({}, {"app": "x"}, {"app": "x", "tier": "1"})),
            )
            cache.policies.update_policy(read_known_policy(rules[name]))
        else:
            there[number] = make_pod(number, tier=chance.choice("12"))
            cache.update_pod(there[number])
            if chance.random() < 0.5:
                answer = Scheduling(cache).filter(ExtenderArgs(there[number], ["a"], None))
                assert answer["NodeNames"] in ([], ["a"])
        sets = set[tuple[str, ...]]()
        for each in there.values():
            selecting = find_selecting(rules, each)
            counted = cache.policies.find_counted(each.uid)[1]
            assert [counted.name if counted else None] == (selecting[:1] or [None])
            sets |= {(*selecting,)} if len(selecting) > 1 else set()
        assert cache.policies.find_overlaps("ns") == sets


def find_selecting(rules: dict[str, Json], given_pod: Pod) -> list[str]:
    """Which valid policies select a pod, the oldest first."""
    valid = [rule for rule in rules.values() if rule["spec"]["units"][0]["max"]]
    found = [
        rule["metadata"]
        for rule in valid
        if rule["spec"]["selector"].items() <= given_pod.labels.items()
    ]
    order = sorted(found, key=lambda meta: (meta["creationTimestamp"], meta["name"]))
    return [meta["name"] for meta in order]
