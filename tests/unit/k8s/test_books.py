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

from cgpu_k8s.books.books import Books
from cgpu_k8s.books.placing import BOUND, SENT, UNKNOWN, commit, find, fits_without
from cgpu_k8s.objects.decisions import write_annotations
from cgpu_k8s.objects.gpus import Fact
from cgpu_k8s.objects.nodes import WITHHELD, Offer
from cgpu_k8s.objects.pods import Pod
from cgpu_node.allocation import (
    BINPACK,
    CGPU,
    FULL,
    Container,
    Decision,
    Gpu,
    NeedError,
    Node,
    Refusal,
    decide,
    part_of,
)

pytestmark = pytest.mark.unit

UNITS = 4


def offer(name: str, units: int = UNITS, withheld: str = "") -> Offer:
    """A node with two GPUs."""
    gpus = {f"GPU-{name}-{n}": Fact(f"GPU-{name}-{n}", n, units << 10) for n in range(2)}
    return Offer(name, "", "" if withheld else CGPU, BINPACK, gpus, withheld)


def pod(uid: str, units: int = 1, gpus: int = 1, **changes: Any) -> Pod:
    containers = (Container("main", units),)
    found = Pod(uid, "ns", f"name-{uid}", "", "", final=False, gpus=gpus, containers=containers,
                refusal="", apps=("main",), allocation="")  # fmt: skip
    return found._replace(**changes)


def bound(given_pod: Pod, decision: Decision) -> Pod:
    """The pod as its binding with a decision leaves it."""
    gpus = offer(decision.node).gpus
    text = write_annotations(decision, given_pod, gpus, 1)["cgpu/allocation"]
    return given_pod._replace(node=decision.node, allocation=text)


def on(given_pod: Pod, *uuids: str) -> Pod:
    """The pod, bound to some GPUs of a node."""
    node = uuids[0].split("-")[1]
    gpus = [Gpu(uuid, n, 99) for n, uuid in enumerate(uuids)]
    assert given_pod.need is not None
    decision = decide(Node(node, CGPU, BINPACK, gpus), given_pod.need)
    assert isinstance(decision, Decision)
    return bound(given_pod, decision)


def state(books: Books) -> Any:
    """Everything that books hold, in a form that compares."""
    return (
        books.offers,
        {name: node.taken for name, node in books.nodes.items()},
        {
            (name, uuid): node.used(uuid)
            for name, node in books.nodes.items()
            for uuid in {*node.gpus, *(uuid for each in node.taken.values() for uuid in each.gpus)}
        },
        books.pods,
        books.bound,
        books.problems,
    )


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
            "has a bad annotation": [first, second, second._replace(allocation="{")],
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


def deliver(books: Books, event: tuple[str, str, Any]) -> None:
    kind, name, what = event
    if kind == "node":
        books.node_seen(what) if what else books.node_gone(name)
    else:
        books.pod_seen(what) if what else books.pod_gone(name)


def listed(books: Books, events: list[Any]) -> None:
    books.nodes_listed(last(events, "node"))
    books.pods_listed(last(events, "pod"))


@given(
    st.fixed_dictionaries({"a": NODES, "b": NODES}),
    st.lists(PODS, max_size=6),
    st.randoms(use_true_random=False),
)
def test_books_are_the_same_after_events_in_any_order_repeated_or_lost_before_a_list(
    nodes: dict[str, list[Any]], pods: list[tuple[int, str, str]], chance: random.Random
) -> None:
    events = mixed(chance, histories(nodes, pods))
    fresh = Books()
    listed(fresh, events)
    books = Books()
    lost = sorted(chance.randrange(len(events) + 1) for _ in range(2))
    for n, event in enumerate(events):
        if n == lost[1]:
            listed(books, events[:n])
        if not lost[0] <= n < lost[1]:
            for _ in range(chance.choice((1, 1, 2))):
                deliver(books, event)
    if lost[1] == len(events):
        listed(books, events)
    assert state(books) == state(fresh)


class Cluster(RuleBasedStateMachine):
    """A scheduler, an API server that loses replies, and books that learn everything late."""

    def __init__(self) -> None:
        super().__init__()
        self.books = Books()
        self.pods: dict[str, Pod] = {}  # as the API server has them
        self.news: list[tuple[str, Any]] = []  # events that are not delivered yet
        self.flying: list[tuple[str, Decision]] = []  # bindings that may still be carried out
        self.found: dict[str, list[str]] = {}
        self.now = 0.0

    @initialize()
    def nodes(self) -> None:
        self.books.nodes_listed([offer("a"), offer("b")])

    def uid(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.pods)), label="pod")

    def change(self, uid: str, new: Pod | None) -> None:
        if new is None:
            del self.pods[uid]
        else:
            self.pods[uid] = new
        self.news.append((uid, new))

    def land(self, uid: str, decision: Decision) -> bool:
        known = self.pods.get(uid)
        if known is None or known.node or known.final:
            return False
        self.change(uid, bound(known, decision))
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
        asked = self.pods[uid]._replace(node="", allocation="")
        self.found[uid] = find(self.books, asked, ("a", "b", "c"), self.now).fitting

    @precondition(lambda self: any(self.found.get(uid) for uid in self.pods))
    @rule(data=st.data(), outcome=st.sampled_from(("ok", "refused", "lost")))
    def bind(self, data: st.DataObject, outcome: str) -> None:
        ready = sorted(uid for uid in self.pods if self.found.get(uid))
        uid = data.draw(st.sampled_from(ready), label="pod")
        node = data.draw(st.sampled_from(self.found[uid]), label="node")
        asked = self.pods[uid]._replace(node="", allocation="")
        decision = commit(self.books, asked, node, self.now)
        if isinstance(decision, Refusal):
            return
        if outcome == "ok" and self.land(uid, decision):
            return
        if outcome == "lost":
            self.flying.append((uid, decision))
        elif not self.pods[uid].node:  # a conflict is no refusal: the pod is read, as by `read`
            self.books.refused(uid)

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), lands=st.booleans())
    def arrive(self, data: st.DataObject, *, lands: bool) -> None:
        uid, decision = self.flying.pop(data.draw(st.integers(0, len(self.flying) - 1)))
        if lands:
            self.land(uid, decision)

    @precondition(lambda self: self.books.reservations)
    @rule()
    def read(self) -> None:
        """What is overdue is read; what is not bound is released once nothing can be on its way."""
        for each in self.books.overdue(self.now + 1):
            known = self.pods.get(each.pod.uid)
            if known is None:
                self.books.pod_gone(each.pod.uid)
            elif known.node:
                self.books.pod_read(known, self.now)
            elif all(uid != each.pod.uid for uid, _ in self.flying):
                self.books.release(each.pod.uid)

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
                self.books.pods_listed(new)
            elif new is None:
                self.books.pod_gone(uid)
            else:
                self.books.pod_seen(new)

    @rule()
    def lose_the_watch(self) -> None:
        """What was not delivered never is; a list is taken now and delivered later."""
        self.news = [("*", list(self.pods.values()))]

    @rule()
    def expire(self) -> None:
        self.now += 1
        self.books.expire(self.now)

    @invariant()
    def no_gpu_has_a_unit_too_many(self) -> None:
        used: dict[str, int] = {}
        for each in self.pods.values():
            if each.node and not each.final:
                books = Books()
                books.pod_seen(each)
                for uuid in books.bound[each.uid].gpus:
                    used[uuid] = used.get(uuid, 0) + books.bound[each.uid].part.units
        assert all(units <= UNITS for units in used.values()), used

    def teardown(self) -> None:
        while self.news:
            self.learn(1)
        fresh = Books()
        fresh.nodes_listed([offer("a"), offer("b")])
        fresh.pods_listed(self.pods.values())
        for uid in list(self.books.reservations):
            self.books.release(uid)
        assert state(self.books) == state(fresh)


Cluster.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestNoSchedulerEverGivesAwayAUnitTooMany = Cluster.TestCase


def cluster(*names: str) -> Books:
    books = Books()
    books.nodes_listed([offer(name) for name in names])
    return books


def test_a_reservation_keeps_room_from_the_next_pod_until_it_is_released() -> None:
    books = cluster("a")
    for n in range(2):
        assert find(books, pod(f"u{n}", 4), ("a",), 0).first == "a"
    later = find(books, pod("u2", 1), ("a",), 0)
    assert (later.fitting, later.first, later.refused["a"].code) == ([], "", FULL)
    books.release("u0")
    assert find(books, pod("u2", 1), ("a",), 0).first == "a"


def test_a_pod_that_is_filtered_again_has_one_reservation() -> None:
    books = cluster("a", "b")
    for names in (("a",), ("a",), ("a", "b"), ("b",)):
        assert find(books, pod("u", 8, 2), names, 0).first in names
        assert [uid for node in books.nodes.values() for uid in node.taken] == ["u"]
    assert list(books.nodes["b"].taken) == ["u"]


def test_a_pod_keeps_no_reservation_once_it_is_seen_bound_or_is_gone() -> None:
    books = cluster("a")
    for n, seen in enumerate((on(pod("u0", 4), "GPU-a-1"), pod("u1", node="elsewhere"))):
        commit(books, pod(f"u{n}", 4), "a", 0)
        books.pod_seen(seen)
        assert books.reservations == {}
    assert {node: set(books.nodes[node].taken) for node in books.nodes} == {"a": {"u0"}}
    commit(books, pod("u2", 4), "a", 0)
    books.pod_gone("u2")
    assert books.reservations == {}
    assert set(books.nodes["a"].taken) == {"u0"}


def test_an_event_from_before_the_binding_takes_nothing_from_a_bound_pod() -> None:
    books = cluster("a")
    books.pod_seen(on(pod("u", 4), "GPU-a-0"))
    before = state(books)
    books.pod_seen(pod("u", 4))
    assert state(books) == before


def test_a_list_that_is_older_than_a_reservation_does_not_release_it() -> None:
    books = cluster("a")
    books.pod_seen(pod("seen"))
    for uid in ("seen", "unseen"):
        commit(books, pod(uid), "a", 0)
    books.pods_listed([])
    assert set(books.reservations) == {"unseen"}


def test_a_list_that_is_older_than_a_binding_that_was_read_takes_nothing_from_the_pod() -> None:
    """It was created and bound while the pages of the list came."""
    books = cluster("a")
    asked = pod("u", 4)
    decision = commit(books, asked, "a", 0)
    assert isinstance(decision, Decision)
    books.pod_read(bound(asked, decision), 20)
    books.pods_listed([])
    assert set(books.nodes["a"].taken) == {"u"}
    assert books.overdue(20) == []
    assert [each.pod.uid for each in books.overdue(21)] == ["u"]
    books.pod_seen(bound(asked, decision))
    books.pods_listed([])
    assert books.nodes["a"].taken == {}


def test_what_was_read_of_a_pod_counts_in_place_of_what_was_sent_for_it() -> None:
    books = cluster("a", "b")
    for uid in ("elsewhere", "plain", "unbound", "final"):
        commit(books, pod(uid, 2), "a", 0)
    books.pod_read(on(pod("elsewhere", 2), "GPU-b-0"), 1)
    books.pod_read(pod("plain", 2, node="a"), 1)
    books.pod_read(pod("unbound", 2), 1)
    books.pod_read(on(pod("final", 2), "GPU-a-0")._replace(final=True), 1)
    assert {name: set(node.taken) for name, node in books.nodes.items()} == {
        "a": {"unbound"},
        "b": {"elsewhere"},
    }
    assert books.reservations["unbound"].since == 0


def test_an_event_that_changes_no_decision_keeps_what_its_node_remembers() -> None:
    books = cluster("a")
    need, seen = pod("asks", 4).need, on(pod("u"), "GPU-a-0")
    assert need is not None
    books.pod_seen(seen)
    remembered = books.nodes["a"].choose(need, part_of(need))
    books.pod_seen(seen)
    assert books.nodes["a"].choose(need, part_of(need)) is remembered


def test_what_was_reserved_long_ago_and_never_sent_is_released() -> None:
    books = cluster("a")
    find(books, pod("old"), ("a",), 1)
    find(books, pod("new"), ("a",), 3)
    find(books, pod("sent"), ("a",), 1)
    commit(books, pod("sent"), "a", 1)
    books.expire(2)
    assert set(books.reservations) == {"new", "sent"}
    assert [each.pod.uid for each in books.overdue(2)] == ["sent"]
    assert books.overdue(1) == []


def test_a_pod_whose_binding_was_sent_goes_nowhere_else_and_is_sent_again_as_it_was() -> None:
    books = cluster("a", "b")
    asked = pod("u", 2)
    first = commit(books, asked, "a", 0)
    assert isinstance(first, Decision)
    found = find(books, asked, ("b", "a"), 1)
    assert (found.fitting, found.first, found.refused["b"].code) == (["a"], "a", SENT)
    assert find(books, asked, ("b",), 1).fitting == []
    elsewhere = commit(books, asked, "b", 1)
    assert isinstance(elsewhere, Refusal)
    assert elsewhere.code == SENT
    assert commit(books, asked, "a", 2) == first
    books.refused("u")  # the first may still be carried out
    assert "u" in books.reservations
    books.release("u")
    assert find(books, asked, ("b",), 3).first == "b"


def test_a_binding_is_not_sent_again_to_a_node_that_is_gone() -> None:
    books = cluster("a")
    first = commit(books, pod("u", 2), "a", 0)
    books.node_gone("a")
    again = commit(books, pod("u", 2), "a", 1)
    assert isinstance(again, Refusal)
    assert again.code == UNKNOWN
    assert books.reservations["u"].decision == first
    assert books.reservations["u"].sent == 1


def test_a_refused_binding_that_was_sent_once_makes_room() -> None:
    books = cluster("a")
    commit(books, pod("u", 4), "a", 0)
    books.refused("u")
    assert books.reservations == {}
    assert books.nodes["a"].taken == {}


def test_a_bound_pod_is_not_placed_again() -> None:
    books = cluster("a", "b")
    books.pod_seen(on(pod("u", 2), "GPU-a-0"))
    again = commit(books, pod("u", 2), "b", 0)
    assert isinstance(again, Refusal)
    assert (again.code, "bound to a already" in again.sentence) == (BOUND, True)


def test_a_pod_that_was_reserved_nowhere_gets_what_its_node_has() -> None:
    books = cluster("a")
    decision = commit(books, pod("u", 4), "a", 0)
    assert isinstance(decision, Decision)
    assert books.nodes["a"].taken == {"u": decision}
    commit(books, pod("v", 4), "a", 0)
    full = commit(books, pod("w", 4), "a", 0)
    assert isinstance(full, Refusal)
    assert full.code == FULL


def test_nodes_that_are_unknown_or_offer_nothing_are_refused_with_the_reason() -> None:
    books = cluster("a")
    books.node_seen(offer("b", withheld="label ...: expected ..."))
    refused = find(books, pod("u"), ("b", "c"), 0).refused
    assert refused == {
        "b": Refusal(WITHHELD, "label ...: expected ..."),
        "c": Refusal(UNKNOWN, "the node is not known yet"),
    }


def test_what_no_gpu_could_give_is_an_error_for_the_pod_not_for_nodes() -> None:
    books = cluster("a")
    wrong = pod("u", refusal="gpu-mem=0: expected at least 1")
    for call in (
        lambda: find(books, wrong, ("a",), 0),
        lambda: commit(books, wrong, "a", 0),
        lambda: fits_without(books, wrong, "a", []),
    ):
        with pytest.raises(NeedError, match="gpu-mem=0"):
            call()
    assert books.reservations == {}


def test_room_is_there_when_victims_on_one_gpu_end_not_when_two_gpus_have_half_each() -> None:
    books = cluster("a")
    for n, uuid in enumerate(("GPU-a-0", "GPU-a-0", "GPU-a-1", "GPU-a-1")):
        books.pod_seen(on(pod(f"u{n}", 2), uuid))
    asked = pod("new", 4)
    before = state(books)
    assert not fits_without(books, asked, "a", ["u0", "u2"])
    assert fits_without(books, asked, "a", ["u0", "u1"])
    assert fits_without(books, asked, "a", ["u2", "u3", "unknown"])
    assert not fits_without(books, asked, "elsewhere", ["u0", "u1"])
    assert fits_without(books, pod("u0", 4), "a", ["u1"])
    assert state(books) == before


def test_victims_of_a_pod_that_no_gpu_could_serve_keep_their_room() -> None:
    books = cluster("a")
    books.pod_seen(on(pod("victim", 4), "GPU-a-0"))
    before = state(books)
    with pytest.raises(NeedError):
        fits_without(books, pod("wrong", refusal="gpu-mem=0"), "a", ["victim"])
    assert state(books) == before


def test_a_pod_that_is_being_deleted_keeps_its_room_until_it_is_gone() -> None:
    books = cluster("a")
    books.pod_seen(on(pod("u", 4), "GPU-a-0"))
    assert books.nodes["a"].used("GPU-a-0").units == 4
    books.pod_seen(on(pod("u", 4), "GPU-a-0")._replace(final=True))
    assert books.nodes["a"].used("GPU-a-0").units == 0


def test_why_a_bound_pod_has_nothing_is_known() -> None:
    books = cluster("a")
    books.pod_seen(pod("plain", node="a"))
    books.pod_seen(on(pod("other"), "GPU-a-0")._replace(uid="copied"))
    assert "bound without a decision" in books.problems["plain"]
    assert "pod=other: expected copied" in books.problems["copied"]
    assert books.nodes["a"].taken == {}


def test_pods_that_ask_for_no_gpu_are_not_kept() -> None:
    books = cluster("a")
    books.pod_seen(pod("u")._replace(containers=()))
    assert books.pods == {}


def test_events_that_do_not_change_an_offer_keep_what_its_node_remembers() -> None:
    books = cluster("a")
    before = books.nodes["a"]
    books.node_seen(offer("a"))
    assert books.nodes["a"] is before
    books.node_seen(offer("a", 8))
    assert books.nodes["a"] is not before
