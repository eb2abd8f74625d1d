"""Which events of a watch are news."""

from __future__ import annotations

from typing import Any

import pytest

from cgpu_k8s.apiserver.resource_version import REMEMBERED, VersionTracker

pytestmark = pytest.mark.unit


def item(uid: str, version: object) -> dict[str, Any]:
    return {"metadata": {"uid": uid, "resourceVersion": str(version)}}


def listed(*items: dict[str, Any], version: str = "10") -> VersionTracker:
    tracker = VersionTracker()
    for each in items:
        tracker.add_listed(each)
    tracker.version = version
    return tracker


def test_an_event_that_comes_twice_is_news_once() -> None:
    tracker = listed(item("a", 5))
    assert tracker.accept_event("MODIFIED", item("a", 11))
    assert not tracker.accept_event("MODIFIED", item("a", 11))
    assert not tracker.accept_event("ADDED", item("a", 5))


def test_of_events_in_the_wrong_order_the_newest_counts() -> None:
    tracker = listed()
    assert tracker.accept_event("MODIFIED", item("a", 13))
    assert not tracker.accept_event("MODIFIED", item("a", 12))
    assert tracker.accept_event("ADDED", item("b", 11))
    assert tracker.version == "13"


def test_what_is_deleted_does_not_come_back() -> None:
    tracker = listed(item("a", 5))
    assert tracker.accept_event("DELETED", item("a", 12))
    assert not tracker.accept_event("MODIFIED", item("a", 11))
    assert not tracker.accept_event("ADDED", item("a", 11))
    assert not tracker.accept_event("DELETED", item("a", 12))


def test_a_deletion_older_than_the_object_is_none() -> None:
    assert not listed(item("a", 9)).accept_event("DELETED", item("a", 8))


def test_an_object_that_leaves_a_selector_carries_its_last_version() -> None:
    assert listed(item("a", 9)).accept_event("DELETED", item("a", 9))


def test_an_object_that_a_selector_chooses_again_is_news() -> None:
    tracker = listed(item("a", 9))
    assert tracker.accept_event("DELETED", item("a", 11))
    assert tracker.accept_event("ADDED", item("a", 12))
    assert not tracker.accept_event("DELETED", item("a", 11))
    assert tracker.accept_event("DELETED", item("a", 13))


def test_an_object_that_was_never_there_is_not_deleted() -> None:
    assert not listed().accept_event("DELETED", item("a", 12))


def test_a_bookmark_moves_forward_only() -> None:
    tracker = listed()
    tracker.advance_to("20")
    tracker.advance_to("15")
    assert tracker.version == "20"


def test_versions_that_are_no_numbers_are_all_news() -> None:
    tracker = listed(item("a", "x"), version="w")
    assert tracker.accept_event("MODIFIED", item("a", "v"))
    assert tracker.version == "v"
    assert tracker.accept_event("DELETED", item("a", "v"))


def test_few_of_the_deleted_are_remembered() -> None:
    tracker = listed()
    for number in range(REMEMBERED + 5):
        tracker.accept_event("ADDED", item(f"u{number}", 2 * number + 20))
        tracker.accept_event("DELETED", item(f"u{number}", 2 * number + 21))
    assert tracker.accept_event("MODIFIED", item("u4", 20))
    assert not tracker.accept_event("MODIFIED", item("u5", 20))
