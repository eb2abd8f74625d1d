"""The cluster's books: the same after any events, and never a unit too many for any scheduler.

K8S-12.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cgpu_k8s.objects.allocations import Allocation
from cgpu_k8s.objects.pods import Pod
from cgpu_k8s.scheduler.allocation import Refusal
from cgpu_k8s.scheduler.cache import SchedulerCache
from cgpu_k8s.scheduler.placing import allocate_for_binding, find_nodes
from lab.worlds.cache import UNITS, bound, offer, on, pod, state

pytestmark = pytest.mark.unit

# What happens to one node, and to one pod, in order; None: it was deleted.
NODES = st.lists(
    st.sampled_from((offer, lambda name: offer(name, 2), lambda name: offer(name, 4, "no"), None)),
    max_size=4,
)
PODS = st.tuples(
    st.integers(1, 3),
    st.sampled_from(("GPU-a-0", "GPU-a-1", "GPU-b-0")),
    st.sampled_from(("runs", "ends", "is deleted", "was deleted unbound", "has a bad annotation")),
)


def histories(nodes: dict[str, list[Any]], pods: list[tuple[int, str, str]]) -> list[list[Any]]:
    """For each object the list of its events: (kind, name, state or None)."""
    found: list[list[Any]] = [
        [("node", name, each(name) if each else None) for each in seen]
        for name, seen in nodes.items()
    ]
    for n, (units, uuid, fate) in enumerate(pods):
        first = pod(f"u{n}", units)
        second = on(first, uuid)
        fates: dict[str, list[Pod | None]] = {
            "runs": [first, second],
            "ends": [first, second, second._replace(final=True)],
            "is deleted": [first, second, None],
            "was deleted unbound": [first, None],
            "has a bad annotation": [first, second, second._replace(allocation_annotation="{")],
        }
        found.append([("pod", first.uid, each) for each in fates[fate]])
    return found


def mixed(chance: random.Random, parts: list[list[Any]]) -> list[Any]:
    """Events of several objects in some order that keeps each one's."""
    ahead = [list(reversed(part)) for part in parts if part]
    found = []
    while ahead:
        part = chance.choice(ahead)
        found.append(part.pop())
        ahead = [each for each in ahead if each]
    return found


def last(events: list[Any], kind: str) -> list[Any]:
    """The objects of a kind that are there after some events."""
    states = {name: each for what, name, each in events if what == kind}
    return [each for each in states.values() if each is not None]


def deliver(cache: SchedulerCache, event: tuple[str, str, Any]) -> None:
    kind, name, what = event
    if kind == "node":
        cache.update_node(what) if what else cache.remove_node(name)
    else:
        cache.update_pod(what) if what else cache.remove_pod(name)


def listed(cache: SchedulerCache, events: list[Any]) -> None:
    cache.replace_nodes(last(events, "node"))
    cache.replace_pods(last(events, "pod"))


@given(
    st.fixed_dictionaries({"a": NODES, "b": NODES}),
    st.lists(PODS, max_size=6),
    st.randoms(use_true_random=False),
)
def test_books_are_the_same_after_events_in_any_order_repeated_or_lost_before_a_list(
    nodes: dict[str, list[Any]], pods: list[tuple[int, str, str]], chance: random.Random
) -> None:
    events = mixed(chance, histories(nodes, pods))
    fresh = SchedulerCache()
    listed(fresh, events)
    cache = SchedulerCache()
    lost = sorted(chance.randrange(len(events) + 1) for _ in range(2))
    for n, event in enumerate(events):
        if n == lost[1]:
            listed(cache, events[:n])
        if not lost[0] <= n < lost[1]:
            for _ in range(chance.choice((1, 1, 2))):
                deliver(cache, event)
    if lost[1] == len(events):
        listed(cache, events)
    assert state(cache) == state(fresh)


class Cluster(RuleBasedStateMachine):
    """A scheduler, an API server that loses replies, and books that learn everything late."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = SchedulerCache()
        self.pods: dict[str, Pod] = {}  # as the API server has them
        self.news: list[tuple[str, Any]] = []  # events that are not delivered yet
        self.flying: list[tuple[str, Allocation]] = []  # bindings that may still be carried out
        self.found: dict[str, list[str]] = {}
        self.now = 0.0

    @initialize()
    def nodes(self) -> None:
        self.cache.replace_nodes([offer("a"), offer("b")])

    def uid(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.pods)), label="pod")

    def change(self, uid: str, new: Pod | None) -> None:
        if new is None:
            del self.pods[uid]
        else:
            self.pods[uid] = new
        self.news.append((uid, new))

    def land(self, uid: str, allocation: Allocation) -> bool:
        known = self.pods.get(uid)
        if known is None or known.node or known.final:
            return False
        self.change(uid, bound(known, allocation))
        return True

    @rule(units=st.integers(1, UNITS), gpus=st.sampled_from((1, 1, 2)))
    def create(self, units: int, gpus: int) -> None:
        uid = f"u{len(self.pods)}-{self.now:.0f}"
        self.now += 1
        self.change(uid, pod(uid, units * gpus, gpus))

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def filter(self, data: st.DataObject) -> None:
        uid = self.uid(data)
        asked = self.pods[uid]._replace(node="", allocation_annotation="")
        self.found[uid] = find_nodes(self.cache, asked, ("a", "b", "c"), self.now).fitting

    @precondition(lambda self: any(self.found.get(uid) for uid in self.pods))
    @rule(data=st.data(), outcome=st.sampled_from(("ok", "refused", "lost")))
    def bind(self, data: st.DataObject, outcome: str) -> None:
        ready = sorted(uid for uid in self.pods if self.found.get(uid))
        uid = data.draw(st.sampled_from(ready), label="pod")
        node = data.draw(st.sampled_from(self.found[uid]), label="node")
        asked = self.pods[uid]._replace(node="", allocation_annotation="")
        allocation = allocate_for_binding(self.cache, asked, node, self.now)
        if isinstance(allocation, Refusal):
            return
        if outcome == "ok" and self.land(uid, allocation):
            return
        if outcome == "lost":
            self.flying.append((uid, allocation))
        elif not self.pods[uid].node:  # a conflict is no refusal: the pod is read, as by `read`
            self.cache.mark_refused(uid)

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), lands=st.booleans())
    def arrive(self, data: st.DataObject, *, lands: bool) -> None:
        uid, allocation = self.flying.pop(data.draw(st.integers(0, len(self.flying) - 1)))
        if lands:
            self.land(uid, allocation)

    @precondition(lambda self: self.cache.assumed)
    @rule()
    def read(self) -> None:
        """What is overdue is read; what is not bound is released once nothing can be on its way."""
        for each in self.cache.list_unconfirmed(self.now + 1):
            known = self.pods.get(each.pod.uid)
            if known is None:
                self.cache.remove_pod(each.pod.uid)
            elif known.node:
                self.cache.confirm_pod(known, self.now)
            elif all(uid != each.pod.uid for uid, _ in self.flying):
                self.cache.forget_pod(each.pod.uid)

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        self.change(self.uid(data), None)

    @precondition(lambda self: any(each.node for each in self.pods.values()))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        running = sorted(uid for uid, each in self.pods.items() if each.node)
        uid = data.draw(st.sampled_from(running))
        self.change(uid, self.pods[uid]._replace(final=True))

    @precondition(lambda self: self.news)
    @rule(times=st.sampled_from((1, 1, 2)))
    def learn(self, times: int) -> None:
        uid, new = self.news.pop(0)
        for _ in range(times):
            if uid == "*":
                self.cache.replace_pods(new)
            elif new is None:
                self.cache.remove_pod(uid)
            else:
                self.cache.update_pod(new)

    @rule()
    def lose_the_watch(self) -> None:
        """What was not delivered never is; a list is taken now and delivered later."""
        self.news = [("*", list(self.pods.values()))]

    @rule()
    def forget_expired(self) -> None:
        self.now += 1
        self.cache.forget_expired(self.now)

    @invariant()
    def no_gpu_has_a_unit_too_many(self) -> None:
        used: dict[str, int] = {}
        for each in self.pods.values():
            if each.node and not each.final:
                cache = SchedulerCache()
                cache.update_pod(each)
                for uuid in cache.bound[each.uid].gpus:
                    used[uuid] = used.get(uuid, 0) + cache.bound[each.uid].part.units
        assert all(units <= UNITS for units in used.values()), used

    def teardown(self) -> None:
        while self.news:
            self.learn(1)
        fresh = SchedulerCache()
        fresh.replace_nodes([offer("a"), offer("b")])
        fresh.replace_pods(self.pods.values())
        for uid in list(self.cache.assumed):
            self.cache.forget_pod(uid)
        assert state(self.cache) == state(fresh)


Cluster.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestNoSchedulerEverGivesAwayAUnitTooMany = Cluster.TestCase
