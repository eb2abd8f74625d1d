"""What the ablation changes, one thing at a time, and what is kept without a bar."""

from __future__ import annotations

import re
from typing import NamedTuple

from bench.ablation.constants import CONSTANTS
from bench.ablation.switches import SWITCHES


class Variant(NamedTuple):
    """One change of one file."""

    name: str
    path: str
    old: re.Pattern[str]
    new: str

    @property
    def thing(self) -> str:
        """Return the name of the thing that is changed."""
        return self.name.rpartition(" ")[0]

    def changed(self, text: str) -> str:
        """Return ``text`` with the change; ValueError if it does not fit exactly once."""
        changed, count = self.old.subn(self.new, text)
        if count != 1:
            raise ValueError(f"{self.name}: found {count} times in {self.path}")
        return changed


CHANGES, CHARGES = "`tests/c/arbiter/arbiter_changes.c`", "`tests/c/arbiter/arbiter_charges.c`"
TURNS, MODEL = "`tests/c/arbiter/arbiter_turns.c`", "`tests/c/test_model.py`"
# What changes no bar of the model, and what needs it.
KEPT = {
    "chain: long ones raise": "`tests/c/gate/pace_loop.c`: work does not pile up",
    "chain: what began before": "several streams: `tests/c/gate/pace_estimates.c`",
    "busy: not more than expected": "work seen late: `tests/c/gate/pace_estimates.c`",
    "room: a look after the marker": "launches of unknown kernels would all sleep: 0217",
    "batches: others end too": "several streams: `tests/c/gate/streams_room.c`",
    "room: what has no marker takes some": "several streams: `tests/c/gate/streams_room.c`",
    "drain: work behind two markers": "a gate that opens and closes soon: `test_gate_apart.py`",
    "idle: since the last end": f"programs with pauses: {MODEL}",
    "idle: marks what has no marker": "long pauses: `test_gate_protocol.py`",
    "bucket: forgets at another rate": f"credit is lost when a ceiling changes: {CHANGES}",
    "turn: expired ones wait": f"their work would run beside the next turn: {TURNS}",
    "turn: strays drain first": f"a new ceiling holds at once: {CHANGES}",
    "review: strays": f"work queued before a ceiling is no debt: {CHANGES}",
    "charge: used_alone": f"GPU time that people see: {CHARGES}",
    "charge: used_alone without work in flight": f"who never launched pays nothing: {CHARGES}",
    "charge: owed after a pause": f"programs with pauses: {MODEL}",
    "charge: lead after a pause": f"programs that run bursts: {MODEL}",
    "charge: floors without expired ones": f"newcomers beside a stopped container: {TURNS}",
    "charge: strays among the payers": f"who had queued work: {CHANGES}",
    "charge: strays do not pay": f"work queued before a ceiling is no debt: {CHANGES}",
    "charge: find_risen": f"work that a host function held back: {CHARGES}",
    "stay: was not idle": f"who runs kernels of seconds is owed something: {MODEL}",
    "stay: not strays": f"work queued before a ceiling is no debt: {CHANGES}",
    "unused: quiet turns only": "false reports: `tests/c/arbiter/arbiter_idle_credit.c`",
    "group: a launch that others wait for": f"a step is not stuck if GPUs are late: {MODEL}",
    "group: comes_back": "deleted with its timer, meet two-have-one-share misses its bar: 6.47, 1",
    "`CGPU_PACE_SOON_NS`": "late threads: `tests/c/gate/pace_lag.c`",
    "`CGPU_IDLE_CREDIT_NS`": "false reports of hours, saved up; a scenario lasts 600 s at most",
    "`CGPU_DEPTH_NS`": f"three ceilings of 30 %: {MODEL}",
    "`CGPU_DEBT_NS`": "endless kernels: `tests/c/arbiter/arbiter_stalls.c`",
    "`CGPU_OWED_NS`": f"programs with pauses: {MODEL}",
    "`CGPU_PAIR_NS`": f"programs that run bursts: {MODEL}",
    "`CGPU_LEAD_NS`": f"programs that run bursts: {MODEL}",
    "`CGPU_OVERLAP_AFTER_NS`": "off: a burst is shown up to 5.7 points off, not 1.6",
    "`SLACK_NS`": "short requests: without it, high-latency 6-5ms-1 rises from 3.0 to 5.5 ms",
    "`LEFT_TIMES`": "off: a burst is shown up to 2.6 points off, not 1.6",
    "`TURNS_APART`": f"a neighbour of bursts keeps 0.93 of its part: {MODEL}",
    "`USUAL_PART`": "off: six of 144 combinations of bursts take too long, not three",
    "`CGPU_AGAIN_NS`": f"who goes on after a stop: {TURNS}",
    "`CGPU_DEATH_NS`": f"who dies is noticed soon: {TURNS}",
    "`CGPU_LONGEST_NS`": f"who was given up is let in again: {TURNS}",
    "`CGPU_STOPPED_NS`": f"ceilings beside a stopped container: {CHARGES}",
    "`CGPU_ALONE_NS`": "a lone container's launches are not counted: `test_gate_cost.py`",
    "`LATELY_NS`": "without it, rules 4-pair misses its bar: 4.57, 4",
    "`CGPU_LEAVE_NS`": "as `comes_back`",
}


def _constant(path: str, name: str, off: str | None) -> list[Variant]:
    old = re.compile(
        rf"^(#define {name} +|.*\b{name} = )(\S.*?)( +/\*.*|, .*| }};)?$", re.MULTILINE
    )
    values = [("off", off)] if off else [("halved", r"((\2) / 2)"), ("doubled", r"((\2) * 2)")]
    return [Variant(f"`{name}` {what}", path, old, rf"\g<1>{value}\3") for what, value in values]


def _switch(name: str, path: str, old: str, new: str) -> Variant:
    literal = new.replace("\\", "\\\\")
    return Variant(f"{name} off", path, re.compile(re.escape(old)), literal)


VARIANTS = [
    _switch(name, path, old, new) for path, each in SWITCHES.items() for name, old, new in each
]
VARIANTS += [variant for each in CONSTANTS for variant in _constant(*each)]
