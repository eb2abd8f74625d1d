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
        """What is changed."""
        return self.name.rpartition(" ")[0]

    def changed(self, text: str) -> str:
        """``text`` with the change; ValueError if it does not fit exactly once."""
        changed, count = self.old.subn(self.new, text)
        if count != 1:
            raise ValueError(f"{self.name}: found {count} times in {self.path}")
        return changed


OPEN = (
    *("turn: work in flight, the lag", "turn: level within two turns", "turn: expired ones wait"),
)
# What changes no bar of the model, and what needs it.
KEPT = {
    "chain: long ones raise": "`tests/c/gate/pace_loop.c`: work does not pile up",
    "chain: what began before": "several streams: `tests/c/gate/pace_estimates.c`",
    "busy: not more than expected": "work seen late: `tests/c/gate/pace_estimates.c`",
    "charge: leaves_it": "who never launched pays nothing: `tests/c/arbiter/arbiter_charges.c`",
    "charge: floors without absent ones": "no scenario: newcomers beside a stopped container",
    "charge: floors without expired ones": "no scenario: newcomers beside a stopped container",
    "unused: quiet turns only": "no scenario: liars beside others",
    "`CGPU_STOPPED_NS`": "ceilings beside a stopped container: `tests/c/arbiter/arbiter_charges.c`",
    "charge: strays among the payers": "who had queued work: `tests/c/arbiter/arbiter_changes.c`",
    "charge: find_risen": "work that a host function held back: 0217; not modelled",
    "stay: was not idle": "long-shares 10000ms-1:9, not in the sample: 17.2 to 40.5, 18",
    "room: a look after the marker": "launches of unknown kernels would all sleep: 0217",
    "room: what has no marker takes some": "several streams: `test_gate_streams.py`",
    "drain: work behind two markers": "a gate that opens and closes soon: `test_gate_apart.py`",
    "idle: marks what has no marker": "long pauses: `test_gate_protocol.py`",
    "bucket: forgets at another rate": "SCH-9: credit is lost when a ceiling changes",
    **dict.fromkeys(OPEN, "open: not tried with all scenarios"),
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
