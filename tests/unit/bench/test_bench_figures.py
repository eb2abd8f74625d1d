"""What the benchmarks make of what they measured."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from bench import cluster
from bench.modelled import summary
from bench.shares import Line, lines, steady, table
from bench.timing import Timing
from gpu.check import NotRunError
from gpu.facts.timing import turns
from lab.kubernetes.programs import Release
from lab.shares.lengths import length_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.unit

LIVE: dict[str, Any] = {
    "step_s": 0.5,
    "change_s": 2.0,
    "arbiter": {"thread_percent": 1.0},
    "grid": {"seconds": 10.0, "worst_points": 0.9, "cells": [{}] * 9},
    "programs": [
        {"name": "one", "targets": [1 / 3, 2 / 3], "shares": [0.3, 0.3, 0.3, 0.9, 0.9, 0.6, 0.6]},
        {"name": "two", "targets": [2 / 3, 1 / 3], "shares": [0.6, 0.6, 0.6, 0.0, 0.0, 0.3, 0.3]},
    ],
}
SHARES = [
    {"name": "a", "value": 0.2, "bar": 0.5, "busy": 99.0, "least_busy": 98.5, "met": True},
    {"name": "b", "value": 0.6, "bar": 0.5, "busy": 99.5, "least_busy": 98.5, "met": False},
]
LATE = [{"name": "c", "value": 5.5, "bar": 6.0, "busy": 70.0, "least_busy": 0, "met": True}]


def test_a_live_pairs_shares_leave_out_the_half_second_around_the_change() -> None:
    rows = steady({"live": LIVE})
    assert [round(share, 6) for _, share, _ in rows] == [33.333333, 66.666667, 66.666667, 33.333333]
    assert all(abs(share - target) < 0.001 for _, share, target in rows)


def test_a_figure_beyond_its_bar_is_shown_as_missed() -> None:
    cases = [summary("share-75-25", SHARES), summary("high-latency", LATE)]
    rows = lines({"model": {"cases": cases}, "live": LIVE})
    assert [row.met for row in rows] == [False, True, True, True, True, True, True, True, True]
    assert "; worst of 2 | 0.60 points | <= 0.5 points | **no** |" in table(rows)


def test_a_lower_bar_is_missed_from_below_and_an_upper_one_on_either_side() -> None:
    assert not Line("busy", 98.0, 98.5, "%", least=True).met
    assert not Line("share", -3.1, 3, "points").met
    assert Line("share", -2.9, 3, "points").met


def test_turns_and_switches_follow_from_when_each_process_did_not_run() -> None:
    """Both run 1 ms in turns, and the GPU needs 50 us in between."""
    period, run, switch = 2_100_000, 1_000_000, 50_000
    starts = [period * i for i in range(5)]
    one = [(at + run, at + period) for at in starts]
    two = [(at - switch, at + run + switch) for at in starts]
    assert turns([one, two]) == {"turn_us": 1000, "switch_us": 50, "turns": 8}


def test_processes_that_never_took_turns_are_no_finding() -> None:
    with pytest.raises(NotRunError):
        turns([[], []])


def test_lengths_are_shown_as_people_write_them() -> None:
    assert [length_text(us) for us in (5, 500, 5000, 200_000)] == [
        "5 us",
        "500 us",
        "5 ms",
        "200 ms",
    ]


def test_what_a_command_adds_is_judged_within_each_round() -> None:
    """A machine that is slow for some rounds is slow for both commands then."""
    plain = Timing(0, 0, 0, (10.0, 50.0, 10.0, 60.0, 11.0))
    capped = Timing(0, 0, 0, (12.0, 52.0, 12.5, 61.0, 13.0))
    assert capped.beyond(plain) == 2.0


def test_the_extender_is_measured_beside_the_newest_kubernetes_at_hand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = []

    @contextmanager
    def control_plane(_folder: Path, release: Release | None = None) -> Iterator[None]:
        begun.append(release)
        raise InterruptedError
        yield

    newest = Release("1.36.2")
    monkeypatch.setattr(cluster, "releases", lambda: (Release("1.20.2"), newest))
    monkeypatch.setattr(cluster, "control_plane", control_plane)
    with pytest.raises(InterruptedError):
        cluster.rate(1, 1)
    assert begun == [newest]
