"""The ablation's changes fit the sources, leave out no constant of theirs, and are read right."""

from __future__ import annotations

import re
from typing import Any

import pytest

from bench.ablation.constants import CONSTANTS
from bench.ablation.measure import Found, missed, table
from bench.ablation.variants import KEPT, VARIANTS, Variant
from bench.modelled import NATIVE, ROOT

pytestmark = pytest.mark.unit

# Units, bounds against overflow, sizes of tables; and the turns by the clock (REL-2), which the
# model does not run.
NOT_TRIED = {
    *("CGPU_MS", "CGPU_VIRTUAL_UNIT", "CGPU_RECENT_PARTS", "PART_NS", "LONGEST_NS"),
    "PPM_NS",
    *("CGPU_PACE_SETS", "CGPU_PACE_WAYS", "CGPU_PACE_BATCHES"),
    *("CGPU_FALLBACK_PERIOD_NS", "CGPU_FALLBACK_AFTER_NS", "CGPU_FALLBACK_UNHEARD_NS"),
    # Nor has it threads of the proxy.
    *("CGPU_ENTER_SLICE_NS", "CGPU_ENTER_ALONE_NS", "CGPU_SLOT_PAUSE_NS", "CGPU_SLOT_SWEEP_NS"),
    *("CGPU_MONITOR_UNWATCHED_NS", "CGPU_MONITOR_AGAIN_NS", "CGPU_MONITOR_POLL_NS"),
    "CGPU_MONITOR_GIVE_UP_NS",
    # Streams that wait for the program, lost markers, threads that do not return: not modelled.
    *("CGPU_STALL_CALL_NS", "CGPU_STALL_BEGINS_NS", "CGPU_STALL_LOST_NS", "CGPU_DRAIN_BLOCKED_NS"),
    "BLOCKED_PART",
    *("CGPU_STALL_AWAITS_NS", "CGPU_STALL_UNKNOWN_NS", "AWAITS_TIMES"),
    "BESIDE_FALL",  # its processes have one stream each
    # Nor does a process die or stop while others of its container queue.
    *("CGPU_PERMIT_LEASE_NS", "CGPU_PERMIT_LOOK_NS", "CGPU_PERMIT_WAIT_NS"),
}
COUNTS = "PART|PARTS|TIMES|TURNS|LAGS|RISE|FALL|ABSENCES|MARKERS"
NAMED = re.compile(rf"^#define (\w+_(?:NS|LAGS)) |\b([A-Z_]*(?:{COUNTS})) = \d", re.MULTILINE)


def named() -> set[str]:
    """The constants of the gate and the arbiter."""
    files = [
        path
        for part in ("gate", "arbiter", "arbiter/group")
        for path in (NATIVE / part).glob("*.[ch]")
    ]
    found = (match for path in files for match in NAMED.findall(path.read_text()))
    return {one or other for one, other in found}


TIME = re.compile(r"^(?:#define|enum \{.*?) ?(\w+_NS)\b", re.MULTILINE)


def test_every_time_of_the_gate_is_in_one_table() -> None:
    folders = (NATIVE / "gate", ROOT / "shim" / "cuda" / "compute")
    found = {
        name: path.name
        for folder in folders
        for path in folder.glob("*.[ch]")
        for name in TIME.findall(path.read_text())
    }
    elsewhere = {name for name, file in found.items() if file != "gate_times.h"}
    assert elsewhere == {"PPM_NS", "LONGEST_NS", "BYTES_PER_NS"}  # none of them is waited for


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_change_fits_exactly_once(variant: Variant) -> None:
    before = (ROOT / variant.path).read_text()
    assert variant.changed(before) != before


def test_each_change_has_a_name_of_its_own() -> None:
    assert len({variant.name for variant in VARIANTS}) == len(VARIANTS)


def test_every_constant_is_tried() -> None:
    assert named() - NOT_TRIED == {name for _, name, _ in CONSTANTS}


def test_what_is_kept_without_a_bar_is_tried() -> None:
    assert set(KEPT) <= {variant.thing for variant in VARIANTS}


def case(name: str, value: float, **more: Any) -> dict[str, Any]:
    """A figure as the model prints it."""
    met = {"busy": 99.0, "least_busy": 98.0, "steps_per_s": 300, "met": value <= 1}
    return {"group": "g", "name": name, "value": value, "bar": 1.0, **met, **more}


def test_the_worst_of_the_missed_figures_is_shown() -> None:
    found = [case("a", 0.5), case("b", 3.0), case("c", 2.0)]
    assert missed(found, {"b": case("b", 0.1)}) == Found("g b", 0.1, 3.0, 1.0)
    assert missed([case("a", 0.5)], {}) is None


def test_a_bar_that_is_missed_without_a_change_says_nothing() -> None:
    assert missed([case("a", 3.0)], {"a": case("a", 2.0)}) is None


def test_an_idle_gpu_is_a_missed_bar_too() -> None:
    found = [case("a", 0.5, busy=40.0, met=False)]
    assert missed(found, {"a": case("a", 0.4)}) == Found("g a, busy", 99.0, 40.0, 98.0)


def test_a_line_shows_what_each_change_misses() -> None:
    shown = table({"end_of off": Found("g b", 0.1, 3.0, 1.0)})
    assert shown.splitlines()[2] == "| end_of | g b: 0.1 to **3**, 1 | | | |"
