"""The cluster's books: what is reserved, bound, refused and released.

K8S-12.
"""

from __future__ import annotations

import pytest

from cgpu_k8s.objects.allocations import Allocation
from cgpu_k8s.objects.pod_request import PodRequestError, compute_pod_part
from cgpu_k8s.scheduler.allocation import FULL, WITHHELD, Refusal
from cgpu_k8s.scheduler.cache import SchedulerCache
from cgpu_k8s.scheduler.placing import (
    BOUND,
    SENT,
    UNKNOWN,
    allocate_for_binding,
    find_nodes,
    fits_without,
)
from lab.worlds.cache import bound, offer, on, pod, state

pytestmark = pytest.mark.unit


def cluster(*names: str) -> SchedulerCache:
    cache = SchedulerCache()
    cache.replace_nodes([offer(name) for name in names])
    return cache


def test_a_reservation_keeps_room_from_the_next_pod_until_it_is_released() -> None:
    cache = cluster("a")
    for n in range(2):
        assert find_nodes(cache, pod(f"u{n}", 4), ("a",), 0).first == "a"
    later = find_nodes(cache, pod("u2", 1), ("a",), 0)
    assert (later.fitting, later.first, later.refused["a"].code) == ([], "", FULL)
    cache.forget_pod("u0")
    assert find_nodes(cache, pod("u2", 1), ("a",), 0).first == "a"


def test_a_pod_that_is_filtered_again_has_one_reservation() -> None:
    cache = cluster("a", "b")
    for names in (("a",), ("a",), ("a", "b"), ("b",)):
        assert find_nodes(cache, pod("u", 8, 2), names, 0).first in names
        assert [uid for node in cache.nodes.values() for uid in node.taken] == ["u"]
    assert list(cache.nodes["b"].taken) == ["u"]


def test_a_pod_keeps_no_reservation_once_it_is_seen_bound_or_is_gone() -> None:
    cache = cluster("a")
    for n, seen in enumerate((on(pod("u0", 4), "GPU-a-1"), pod("u1", node="elsewhere"))):
        allocate_for_binding(cache, pod(f"u{n}", 4), "a", 0)
        cache.update_pod(seen)
        assert cache.assumed == {}
    assert {node: set(cache.nodes[node].taken) for node in cache.nodes} == {"a": {"u0"}}
    allocate_for_binding(cache, pod("u2", 4), "a", 0)
    cache.remove_pod("u2")
    assert cache.assumed == {}
    assert set(cache.nodes["a"].taken) == {"u0"}


def test_an_event_from_before_the_binding_takes_nothing_from_a_bound_pod() -> None:
    cache = cluster("a")
    cache.update_pod(on(pod("u", 4), "GPU-a-0"))
    before = state(cache)
    cache.update_pod(pod("u", 4))
    assert state(cache) == before


def test_a_list_that_is_older_than_a_reservation_does_not_release_it() -> None:
    cache = cluster("a")
    cache.update_pod(pod("seen"))
    for uid in ("seen", "unseen"):
        allocate_for_binding(cache, pod(uid), "a", 0)
    cache.replace_pods([])
    assert set(cache.assumed) == {"unseen"}


def test_a_list_that_is_older_than_a_binding_that_was_read_takes_nothing_from_the_pod() -> None:
    """It was created and bound while the pages of the list came."""
    cache = cluster("a")
    asked = pod("u", 4)
    allocation = allocate_for_binding(cache, asked, "a", 0)
    assert isinstance(allocation, Allocation)
    cache.confirm_pod(bound(asked, allocation), 20)
    cache.replace_pods([])
    assert set(cache.nodes["a"].taken) == {"u"}
    assert cache.list_unconfirmed(20) == []
    assert [each.pod.uid for each in cache.list_unconfirmed(21)] == ["u"]
    cache.update_pod(bound(asked, allocation))
    cache.replace_pods([])
    assert cache.nodes["a"].taken == {}


def test_what_was_read_of_a_pod_counts_in_place_of_what_was_sent_for_it() -> None:
    cache = cluster("a", "b")
    for uid in ("elsewhere", "plain", "unbound", "final"):
        allocate_for_binding(cache, pod(uid, 2), "a", 0)
    cache.confirm_pod(on(pod("elsewhere", 2), "GPU-b-0"), 1)
    cache.confirm_pod(pod("plain", 2, node="a"), 1)
    cache.confirm_pod(pod("unbound", 2), 1)
    cache.confirm_pod(on(pod("final", 2), "GPU-a-0")._replace(final=True), 1)
    assert {name: set(node.taken) for name, node in cache.nodes.items()} == {
        "a": {"unbound"},
        "b": {"elsewhere"},
    }
    assert cache.assumed["unbound"].since == 0


def test_an_event_that_changes_no_decision_keeps_what_its_node_remembers() -> None:
    cache = cluster("a")
    request, seen = pod("asks", 4).request, on(pod("u"), "GPU-a-0")
    assert request is not None
    cache.update_pod(seen)
    remembered = cache.nodes["a"].choose(request, compute_pod_part(request))
    cache.update_pod(seen)
    assert cache.nodes["a"].choose(request, compute_pod_part(request)) is remembered


def test_what_was_reserved_long_ago_and_never_sent_is_released() -> None:
    cache = cluster("a")
    find_nodes(cache, pod("old"), ("a",), 1)
    find_nodes(cache, pod("new"), ("a",), 3)
    find_nodes(cache, pod("sent"), ("a",), 1)
    allocate_for_binding(cache, pod("sent"), "a", 1)
    cache.forget_expired(2)
    assert set(cache.assumed) == {"new", "sent"}
    assert [each.pod.uid for each in cache.list_unconfirmed(2)] == ["sent"]
    assert cache.list_unconfirmed(1) == []


def test_a_pod_whose_binding_was_sent_goes_nowhere_else_and_is_sent_again_as_it_was() -> None:
    cache = cluster("a", "b")
    asked = pod("u", 2)
    first = allocate_for_binding(cache, asked, "a", 0)
    assert isinstance(first, Allocation)
    found = find_nodes(cache, asked, ("b", "a"), 1)
    assert (found.fitting, found.first, found.refused["b"].code) == (["a"], "a", SENT)
    assert find_nodes(cache, asked, ("b",), 1).fitting == []
    elsewhere = allocate_for_binding(cache, asked, "b", 1)
    assert isinstance(elsewhere, Refusal)
    assert elsewhere.code == SENT
    assert allocate_for_binding(cache, asked, "a", 2) == first
    cache.mark_refused("u")  # the first may still be carried out
    assert "u" in cache.assumed
    cache.forget_pod("u")
    assert find_nodes(cache, asked, ("b",), 3).first == "b"


def test_a_binding_is_not_sent_again_to_a_node_that_is_gone() -> None:
    cache = cluster("a")
    first = allocate_for_binding(cache, pod("u", 2), "a", 0)
    cache.remove_node("a")
    again = allocate_for_binding(cache, pod("u", 2), "a", 1)
    assert isinstance(again, Refusal)
    assert again.code == UNKNOWN
    assert cache.assumed["u"].allocation == first
    assert cache.assumed["u"].sent == 1


def test_a_refused_binding_that_was_sent_once_makes_room() -> None:
    cache = cluster("a")
    allocate_for_binding(cache, pod("u", 4), "a", 0)
    cache.mark_refused("u")
    assert cache.assumed == {}
    assert cache.nodes["a"].taken == {}


def test_a_bound_pod_is_not_placed_again() -> None:
    cache = cluster("a", "b")
    cache.update_pod(on(pod("u", 2), "GPU-a-0"))
    again = allocate_for_binding(cache, pod("u", 2), "b", 0)
    assert isinstance(again, Refusal)
    assert (again.code, "bound to a already" in again.sentence) == (BOUND, True)


def test_a_pod_that_was_reserved_nowhere_gets_what_its_node_has() -> None:
    cache = cluster("a")
    allocation = allocate_for_binding(cache, pod("u", 4), "a", 0)
    assert isinstance(allocation, Allocation)
    assert cache.nodes["a"].taken == {"u": allocation}
    allocate_for_binding(cache, pod("v", 4), "a", 0)
    full = allocate_for_binding(cache, pod("w", 4), "a", 0)
    assert isinstance(full, Refusal)
    assert full.code == FULL


def test_nodes_that_are_unknown_or_offer_nothing_are_refused_with_the_reason() -> None:
    cache = cluster("a")
    cache.update_node(offer("b", withheld="label ...: expected ..."))
    refused = find_nodes(cache, pod("u"), ("b", "c"), 0).refused
    assert refused == {
        "b": Refusal(WITHHELD, "label ...: expected ..."),
        "c": Refusal(UNKNOWN, "the node is not known yet"),
    }


def test_what_no_gpu_could_give_is_an_error_for_the_pod_not_for_nodes() -> None:
    cache = cluster("a")
    wrong = pod("u", refusal="gpu-mem=0: expected at least 1")
    for call in (
        lambda: find_nodes(cache, wrong, ("a",), 0),
        lambda: allocate_for_binding(cache, wrong, "a", 0),
        lambda: fits_without(cache, wrong, "a", []),
    ):
        with pytest.raises(PodRequestError, match="gpu-mem=0"):
            call()
    assert cache.assumed == {}


def test_room_is_there_when_victims_on_one_gpu_end_not_when_two_gpus_have_half_each() -> None:
    cache = cluster("a")
    for n, uuid in enumerate(("GPU-a-0", "GPU-a-0", "GPU-a-1", "GPU-a-1")):
        cache.update_pod(on(pod(f"u{n}", 2), uuid))
    asked = pod("new", 4)
    before = state(cache)
    assert not fits_without(cache, asked, "a", ["u0", "u2"])
    assert fits_without(cache, asked, "a", ["u0", "u1"])
    assert fits_without(cache, asked, "a", ["u2", "u3", "unknown"])
    assert not fits_without(cache, asked, "elsewhere", ["u0", "u1"])
    assert fits_without(cache, pod("u0", 4), "a", ["u1"])
    assert state(cache) == before


def test_victims_of_a_pod_that_no_gpu_could_serve_keep_their_room() -> None:
    cache = cluster("a")
    cache.update_pod(on(pod("victim", 4), "GPU-a-0"))
    before = state(cache)
    with pytest.raises(PodRequestError):
        fits_without(cache, pod("wrong", refusal="gpu-mem=0"), "a", ["victim"])
    assert state(cache) == before


def test_a_pod_that_is_being_deleted_keeps_its_room_until_it_is_gone() -> None:
    cache = cluster("a")
    cache.update_pod(on(pod("u", 4), "GPU-a-0"))
    assert cache.nodes["a"].used_part("GPU-a-0").units == 4
    cache.update_pod(on(pod("u", 4), "GPU-a-0")._replace(final=True))
    assert cache.nodes["a"].used_part("GPU-a-0").units == 0


def test_why_a_bound_pod_has_nothing_is_known() -> None:
    cache = cluster("a")
    cache.update_pod(pod("plain", node="a"))
    cache.update_pod(on(pod("other"), "GPU-a-0")._replace(uid="copied"))
    assert "bound without a decision" in cache.problems["plain"]
    assert "pod=other: expected copied" in cache.problems["copied"]
    assert cache.nodes["a"].taken == {}


def test_pods_that_ask_for_no_gpu_are_not_kept() -> None:
    cache = cluster("a")
    cache.update_pod(pod("u")._replace(containers=()))
    assert cache.pods == {}


def test_events_that_do_not_change_an_offer_keep_what_its_node_remembers() -> None:
    cache = cluster("a")
    before = cache.nodes["a"]
    cache.update_node(offer("a"))
    assert cache.nodes["a"] is before
    cache.update_node(offer("a", 8))
    assert cache.nodes["a"] is not before
