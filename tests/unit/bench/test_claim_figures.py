"""What the benchmark of claims makes of what it measured, and what it compares with."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from bench.claims import measure
from bench.claims.scheduled import GPUS, example_slice, our_slice
from lab.kubernetes.programs import Release

pytestmark = pytest.mark.unit

GOOD: dict[str, Any] = {
    "kubernetes": "1.36.2",
    "shuffle": {"prepare_ms": {"p50": 5.0, "p99": 20.0}, "wrong": 0, "left": 0},
    "rest": {"writes": 0, "seconds": 120.0},
    "megabytes": 44.0,
    "added_ms": 14.0,
    "burst": {"wrong": 0, "left": 0},
    "kills": {"failed": 0, "left": 0, "pods": 58},
    "scheduled": {"ratio": 0.95, "excess": 0, "filled": 200, "spread": 205},
}
BAD = [
    (("shuffle", "prepare_ms", "p50"), 11), (("shuffle", "prepare_ms", "p99"), 51),
    (("shuffle", "wrong"), 1), (("shuffle", "left"), 1), (("rest", "writes"), 1),
    (("megabytes",), 61), (("added_ms",), 16), (("burst", "wrong"), 1), (("burst", "left"), 1),
    (("kills", "failed"), 1), (("kills", "left"), 1), (("scheduled", "ratio"), 0.8),
    (("scheduled", "excess"), 1), (("scheduled", "filled"), 211), (("scheduled", "spread"), 211),
]  # fmt: skip


def test_each_figure_of_claims_has_a_line_that_it_can_miss() -> None:
    assert all(line.met for line in measure.lines(GOOD))
    assert len(measure.lines(GOOD)) == len(BAD)
    for (*folders, name), value in BAD:
        figures = copy.deepcopy(GOOD)
        at = figures
        for each in folders:
            at = at[each]
        at[name] = value
        assert sum(not line.met for line in measure.lines(figures)) == 1, name


def test_claims_are_measured_with_a_kubernetes_that_knows_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "releases", lambda: (Release("1.20.2"),))
    assert not measure.are_known()
    with pytest.raises(SystemExit, match=r"expected .* 1\.36 or later, .*; found 1\.20\.2"):
        measure.measure()


def test_the_example_drivers_slice_has_the_same_gpus_and_none_of_our_attributes() -> None:
    ours, theirs = our_slice("node-1")["spec"], example_slice("node-1")["spec"]
    assert (theirs["pool"], theirs["nodeName"]) == (ours["pool"], ours["nodeName"])
    assert len(theirs["devices"]) == len(ours["devices"]) == GPUS
    for own, other in zip(ours["devices"], theirs["devices"], strict=True):
        assert own["name"] == other["name"]
        assert own["attributes"].keys() >= {"driverVersion", "productName"}
        assert other["attributes"].keys() == {"index", "uuid", "model", "driverVersion"}
        assert other["capacity"] == {"memory": own["capacity"]["memory"]}
