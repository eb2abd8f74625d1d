"""The cluster's books: what is reserved, bound, refused and released.

K8S-12.
"""

from __future__ import annotations

import pytest

from cgpu_k8s.objects.allocations import Allocation
from cgpu_k8s.objects.pod_request import NeedError, part_of
from cgpu_k8s.scheduler.allocation import FULL, WITHHELD, Refusal
from cgpu_k8s.scheduler.cache import Books
from cgpu_k8s.scheduler.placing import (
    BOUND,
    SENT,
    UNKNOWN,
    commit_decision,
    find_nodes,
    fits_without,
)
from lab.worlds.cache import bound, offer, on, pod, state

pytestmark = pytest.mark.unit


def cluster(*names: str) -> Books:
    books = Books()
    books.replace_nodes([offer(name) for name in names])
    return books


def test_a_reservation_keeps_room_from_the_next_pod_until_it_is_released() -> None:
    books = cluster("a")
    for n in range(2):
        assert find_nodes(books, pod(f"u{n}", 4), ("a",), 0).first == "a"
    later = find_nodes(books, pod("u2", 1), ("a",), 0)
    assert (later.fitting, later.first, later.refused["a"].code) == ([], "", FULL)
    books.release("u0")
    assert find_nodes(books, pod("u2", 1), ("a",), 0).first == "a"


def test_a_pod_that_is_filtered_again_has_one_reservation() -> None:
    books = cluster("a", "b")
    for names in (("a",), ("a",), ("a", "b"), ("b",)):
        assert find_nodes(books, pod("u", 8, 2), names, 0).first in names
        assert [uid for node in books.nodes.values() for uid in node.taken] == ["u"]
    assert list(books.nodes["b"].taken) == ["u"]


def test_a_pod_keeps_no_reservation_once_it_is_seen_bound_or_is_gone() -> None:
    books = cluster("a")
    for n, seen in enumerate((on(pod("u0", 4), "GPU-a-1"), pod("u1", node="elsewhere"))):
        commit_decision(books, pod(f"u{n}", 4), "a", 0)
        books.update_pod(seen)
        assert books.reservations == {}
    assert {node: set(books.nodes[node].taken) for node in books.nodes} == {"a": {"u0"}}
    commit_decision(books, pod("u2", 4), "a", 0)
    books.remove_pod("u2")
    assert books.reservations == {}
    assert set(books.nodes["a"].taken) == {"u0"}


def test_an_event_from_before_the_binding_takes_nothing_from_a_bound_pod() -> None:
    books = cluster("a")
    books.update_pod(on(pod("u", 4), "GPU-a-0"))
    before = state(books)
    books.update_pod(pod("u", 4))
    assert state(books) == before


def test_a_list_that_is_older_than_a_reservation_does_not_release_it() -> None:
    books = cluster("a")
    books.update_pod(pod("seen"))
    for uid in ("seen", "unseen"):
        commit_decision(books, pod(uid), "a", 0)
    books.replace_pods([])
    assert set(books.reservations) == {"unseen"}


def test_a_list_that_is_older_than_a_binding_that_was_read_takes_nothing_from_the_pod() -> None:
    """It was created and bound while the pages of the list came."""
    books = cluster("a")
    asked = pod("u", 4)
    decision = commit_decision(books, asked, "a", 0)
    assert isinstance(decision, Allocation)
    books.confirm_pod(bound(asked, decision), 20)
    books.replace_pods([])
    assert set(books.nodes["a"].taken) == {"u"}
    assert books.list_overdue(20) == []
    assert [each.pod.uid for each in books.list_overdue(21)] == ["u"]
    books.update_pod(bound(asked, decision))
    books.replace_pods([])
    assert books.nodes["a"].taken == {}


def test_what_was_read_of_a_pod_counts_in_place_of_what_was_sent_for_it() -> None:
    books = cluster("a", "b")
    for uid in ("elsewhere", "plain", "unbound", "final"):
        commit_decision(books, pod(uid, 2), "a", 0)
    books.confirm_pod(on(pod("elsewhere", 2), "GPU-b-0"), 1)
    books.confirm_pod(pod("plain", 2, node="a"), 1)
    books.confirm_pod(pod("unbound", 2), 1)
    books.confirm_pod(on(pod("final", 2), "GPU-a-0")._replace(final=True), 1)
    assert {name: set(node.taken) for name, node in books.nodes.items()} == {
        "a": {"unbound"},
        "b": {"elsewhere"},
    }
    assert books.reservations["unbound"].since == 0


def test_an_event_that_changes_no_decision_keeps_what_its_node_remembers() -> None:
    books = cluster("a")
    need, seen = pod("asks", 4).need, on(pod("u"), "GPU-a-0")
    assert need is not None
    books.update_pod(seen)
    remembered = books.nodes["a"].choose(need, part_of(need))
    books.update_pod(seen)
    assert books.nodes["a"].choose(need, part_of(need)) is remembered


def test_what_was_reserved_long_ago_and_never_sent_is_released() -> None:
    books = cluster("a")
    find_nodes(books, pod("old"), ("a",), 1)
    find_nodes(books, pod("new"), ("a",), 3)
    find_nodes(books, pod("sent"), ("a",), 1)
    commit_decision(books, pod("sent"), "a", 1)
    books.expire(2)
    assert set(books.reservations) == {"new", "sent"}
    assert [each.pod.uid for each in books.list_overdue(2)] == ["sent"]
    assert books.list_overdue(1) == []


def test_a_pod_whose_binding_was_sent_goes_nowhere_else_and_is_sent_again_as_it_was() -> None:
    books = cluster("a", "b")
    asked = pod("u", 2)
    first = commit_decision(books, asked, "a", 0)
    assert isinstance(first, Allocation)
    found = find_nodes(books, asked, ("b", "a"), 1)
    assert (found.fitting, found.first, found.refused["b"].code) == (["a"], "a", SENT)
    assert find_nodes(books, asked, ("b",), 1).fitting == []
    elsewhere = commit_decision(books, asked, "b", 1)
    assert isinstance(elsewhere, Refusal)
    assert elsewhere.code == SENT
    assert commit_decision(books, asked, "a", 2) == first
    books.mark_refused("u")  # the first may still be carried out
    assert "u" in books.reservations
    books.release("u")
    assert find_nodes(books, asked, ("b",), 3).first == "b"


def test_a_binding_is_not_sent_again_to_a_node_that_is_gone() -> None:
    books = cluster("a")
    first = commit_decision(books, pod("u", 2), "a", 0)
    books.remove_node("a")
    again = commit_decision(books, pod("u", 2), "a", 1)
    assert isinstance(again, Refusal)
    assert again.code == UNKNOWN
    assert books.reservations["u"].decision == first
    assert books.reservations["u"].sent == 1


def test_a_refused_binding_that_was_sent_once_makes_room() -> None:
    books = cluster("a")
    commit_decision(books, pod("u", 4), "a", 0)
    books.mark_refused("u")
    assert books.reservations == {}
    assert books.nodes["a"].taken == {}


def test_a_bound_pod_is_not_placed_again() -> None:
    books = cluster("a", "b")
    books.update_pod(on(pod("u", 2), "GPU-a-0"))
    again = commit_decision(books, pod("u", 2), "b", 0)
    assert isinstance(again, Refusal)
    assert (again.code, "bound to a already" in again.sentence) == (BOUND, True)


def test_a_pod_that_was_reserved_nowhere_gets_what_its_node_has() -> None:
    books = cluster("a")
    decision = commit_decision(books, pod("u", 4), "a", 0)
    assert isinstance(decision, Allocation)
    assert books.nodes["a"].taken == {"u": decision}
    commit_decision(books, pod("v", 4), "a", 0)
    full = commit_decision(books, pod("w", 4), "a", 0)
    assert isinstance(full, Refusal)
    assert full.code == FULL


def test_nodes_that_are_unknown_or_offer_nothing_are_refused_with_the_reason() -> None:
    books = cluster("a")
    books.update_node(offer("b", withheld="label ...: expected ..."))
    refused = find_nodes(books, pod("u"), ("b", "c"), 0).refused
    assert refused == {
        "b": Refusal(WITHHELD, "label ...: expected ..."),
        "c": Refusal(UNKNOWN, "the node is not known yet"),
    }


def test_what_no_gpu_could_give_is_an_error_for_the_pod_not_for_nodes() -> None:
    books = cluster("a")
    wrong = pod("u", refusal="gpu-mem=0: expected at least 1")
    for call in (
        lambda: find_nodes(books, wrong, ("a",), 0),
        lambda: commit_decision(books, wrong, "a", 0),
        lambda: fits_without(books, wrong, "a", []),
    ):
        with pytest.raises(NeedError, match="gpu-mem=0"):
            call()
    assert books.reservations == {}


def test_room_is_there_when_victims_on_one_gpu_end_not_when_two_gpus_have_half_each() -> None:
    books = cluster("a")
    for n, uuid in enumerate(("GPU-a-0", "GPU-a-0", "GPU-a-1", "GPU-a-1")):
        books.update_pod(on(pod(f"u{n}", 2), uuid))
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
    books.update_pod(on(pod("victim", 4), "GPU-a-0"))
    before = state(books)
    with pytest.raises(NeedError):
        fits_without(books, pod("wrong", refusal="gpu-mem=0"), "a", ["victim"])
    assert state(books) == before


def test_a_pod_that_is_being_deleted_keeps_its_room_until_it_is_gone() -> None:
    books = cluster("a")
    books.update_pod(on(pod("u", 4), "GPU-a-0"))
    assert books.nodes["a"].used_part("GPU-a-0").units == 4
    books.update_pod(on(pod("u", 4), "GPU-a-0")._replace(final=True))
    assert books.nodes["a"].used_part("GPU-a-0").units == 0


def test_why_a_bound_pod_has_nothing_is_known() -> None:
    books = cluster("a")
    books.update_pod(pod("plain", node="a"))
    books.update_pod(on(pod("other"), "GPU-a-0")._replace(uid="copied"))
    assert "bound without a decision" in books.problems["plain"]
    assert "pod=other: expected copied" in books.problems["copied"]
    assert books.nodes["a"].taken == {}


def test_pods_that_ask_for_no_gpu_are_not_kept() -> None:
    books = cluster("a")
    books.update_pod(pod("u")._replace(containers=()))
    assert books.pods == {}


def test_events_that_do_not_change_an_offer_keep_what_its_node_remembers() -> None:
    books = cluster("a")
    before = books.nodes["a"]
    books.update_node(offer("a"))
    assert books.nodes["a"] is before
    books.update_node(offer("a", 8))
    assert books.nodes["a"] is not before
