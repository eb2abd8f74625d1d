"""The ablation: changes each learner, mode and constant of the gate, and runs the model.

A variant is a copy of the sources with one change. A sample of each group of scenarios is run, then
all scenarios, and it is over as soon as a bar is missed. Nothing in the sources knows of this. What
was found is kept: a run that was cut short goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.ablation.variants import KEPT, VARIANTS, Variant
from bench.modelled import MODEL, NATIVE, PROGRAM

if TYPE_CHECKING:
    from collections.abc import Callable

PARTS = ("arbiter", "arbiter/group", "gate", "policy")
WORKERS = len(os.sched_getaffinity(0))
LONGEST_S = 60  # of the processor for one group
ENDLESS = 1e9
HOW = ("off", "halved", "doubled")
OBJECTS = PROGRAM.parent / "ablation"
FLAGS = ("-std=gnu11", "-O2", "-D_GNU_SOURCE")
# Group -> every n-th of its worlds is in the sample. Cheap groups come first.
SAMPLE = {
    "edge-ceiling": 1,
    "slow-ceiling": 1,
    "fixed-alone": 1,
    "fair-share-alone": 1,
    "live-change": 1,
    "long-ceiling": 1,
    "idle-pauses": 1,
    "edge-slow": 1,
    "idle-newcomer": 3,
    "liar-ceiling": 7,
    "share-90-10": 7,
    "share-50-50": 7,
    "share-flight": 1,
    "change-ratio": 2,
    "change-from-soft": 1,
    "high-policies": 5,
    "fixed-three": 9,
    "high-ratio": 7,
    "crowd": 11,
    "edge-liar": 7,
    "high-latency": 3,
    "share-late": 7,
    "window-1s": 27,
    "share-75-25": 7,
    "share-five": 27,
    "edge-pairs": 29,
    "change-policy": 19,
    "change-weight": 11,
    "change-max-inst": 11,
    "rules": 1,
    "long-newcomer": 1,
    "stops": 16,
    "kinds": 3,
    "long-shares": 4,
    "window-20s": 7,
    # each is one figure of many worlds
    "fault": 1,
    "pair-fault": 1,
    "meet": 1,
}


class Built(NamedTuple):
    """A compiled model, and its sources."""

    program: Path
    objects: dict[str, str]  # by source

    @property
    def key(self) -> str:
        """Return a key that differs if the program differs."""
        return hashlib.sha256("".join(self.objects.values()).encode()).hexdigest()


class Found(NamedTuple):
    """The figure of a variant that misses a bar; ``usual``: without the change."""

    case: str
    usual: float
    figure: float
    bar: float

    def __str__(self) -> str:
        """Return the text for a cell of the table."""
        figure = "endless" if self.figure >= ENDLESS else f"{self.figure:.4g}"
        return f"{self.case}: {self.usual:.4g} to **{figure}**, {self.bar:.4g}"


def _sources(folder: Path) -> list[Path]:
    return [
        *sorted((folder / "tests" / "model").rglob("*.c")),
        *(path for part in PARTS for path in sorted((folder / "native" / part).glob("*.c"))),
    ]


def _copy(folder: Path) -> None:
    shutil.copytree(MODEL, folder / "tests" / "model")
    for part in (*PARTS, "ledger"):  # headers alone of the last
        shutil.copytree(NATIVE / part, folder / "native" / part, dirs_exist_ok=True)
    for header in NATIVE.glob("*.h"):
        shutil.copy(header, folder / "native")


def _compile(folder: Path, name: str) -> str:
    """Return the object of a source; compile once for each output of the preprocessor."""
    words = ["gcc", *FLAGS, "-P", "-iquote", "native", "-iquote", "tests/model"]
    text = subprocess.run([*words, "-E", name], cwd=folder, check=True, stdout=subprocess.PIPE)
    target = OBJECTS / f"{hashlib.sha256(text.stdout).hexdigest()[:24]}.o"
    if not target.exists():
        temporary = folder / f"{target.name}.{os.getpid()}"
        subprocess.run([*words, "-c", name, "-o", str(temporary)], cwd=folder, check=True)
        shutil.move(temporary, target)
    return str(target)


def build(folder: Path) -> Built:
    """Build the model as it is, in ``folder``."""
    OBJECTS.mkdir(parents=True, exist_ok=True)
    _copy(folder)
    return _link(folder, {str(path.relative_to(folder)): "" for path in _sources(folder)})


def rebuild(folder: Path, variant: Variant, usual: Built) -> Built:
    """Build the model with one change; a header may change every object."""
    _copy(folder)
    path = folder / variant.path
    path.write_text(variant.changed(path.read_text()))
    known = {} if path.suffix == ".h" else usual.objects
    return _link(folder, {**dict.fromkeys(usual.objects, ""), **known, variant.path: ""})


def _link(folder: Path, objects: dict[str, str]) -> Built:
    """Return the program of ``objects``; compile those that are not known yet."""
    program = folder / "program"
    made = {
        name: known or _compile(folder, name)
        for name, known in objects.items()
        if name.endswith(".c")
    }
    subprocess.run(["gcc", *made.values(), "-o", str(program), "-lm"], check=True)
    return Built(program, made)


def cases(program: Path, group: str, every: int) -> list[dict[str, Any]]:
    """Return the figures of a group; a scenario that does not end has missed its bar."""
    words = ["prlimit", f"--cpu={LONGEST_S}", str(program), "cases", group, str(every)]
    done = subprocess.run(words, check=False, stdout=subprocess.PIPE, text=True)
    lines = [re.sub(r"-?\bnan\b|\binf\b", str(ENDLESS), line) for line in done.stdout.splitlines()]
    found = [json.loads(line) for line in lines if line.endswith("}")]
    if done.returncode not in (0, 1):
        found.append(
            {"group": group, "name": "never ends", "value": ENDLESS, "bar": 1, "met": False}
        )
    return [case for case in found if case["group"] == group]


Usual = dict[str, dict[str, dict[str, Any]]]


def _once(name: str, run: Callable[[], Any]) -> Any:
    """Return what ``run`` returns, or returned under this name in an earlier run."""
    known = OBJECTS / f"{hashlib.sha256(name.encode()).hexdigest()[:24]}.json"
    if not known.exists():
        temporary = known.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        temporary.write_text(json.dumps(run()))
        temporary.rename(known)
    return json.loads(known.read_text())


def _usual(built: Built) -> Usual:
    """Return the figures of the sources as they are."""

    def run() -> dict[str, Any]:
        with ThreadPoolExecutor(WORKERS) as pool:
            found = {group: pool.submit(cases, built.program, group, 1) for group in SAMPLE}
        return {group: done.result() for group, done in found.items()}

    found = _once(f"usual {built.key}", run)
    return {group: {case["name"]: case for case in done} for group, done in found.items()}


def _beyond(case: dict[str, Any]) -> float:
    """Return how many times its bar a figure is; a bar may be 0."""
    return float(case["value"]) / (case["bar"] or 1)


def missed(found: list[dict[str, Any]], usual: dict[str, dict[str, Any]]) -> Found | None:
    """The figure that misses its bar by most, but not without the change; None: there is none."""
    known = {name for name, case in usual.items() if not case["met"]}
    late = [case for case in found if not case["met"] and case["name"] not in known]
    if not late:
        return None
    worst = max(late, key=_beyond)
    key, bar = "value", "bar"
    if worst["value"] <= worst["bar"]:  # it misses one of the two other bars of every scenario
        least = worst["busy"] < worst["least_busy"]
        key, bar = ("busy", "least_busy") if least else ("steps_per_s", "most_steps")
    before = usual.get(worst["name"], {}).get(key, 0.0)
    name = f"{worst['group']} {worst['name']}" + ("" if key == "value" else f", {key}")
    return Found(name, before, worst[key], worst.get(bar, 8400))


def examine(program: Path, usual: Usual, groups: dict[str, int]) -> Found | None:
    """Run a variant group by group until it misses a bar."""
    for group, every in groups.items():
        found = missed(cases(program, group, every), usual[group])
        if found is not None:
            return found
    return None


def measure(only: str = "") -> dict[str, Found | None]:
    """Run every variant that matches ``only``, on all available processors; results by name.

    What misses no bar of the sample is tried with all scenarios, when the rest is done.
    """
    found: dict[str, Found | None] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        built = build(folder / "usual")
        usual = _usual(built)

        def one(variant: Variant, groups: dict[str, int]) -> None:
            own = folder / hashlib.sha256(variant.name.encode()).hexdigest()
            changed = rebuild(own, variant, built)
            name = f"{built.key} {changed.key} {groups}"
            values = _once(name, lambda: examine(changed.program, usual, groups))
            shutil.rmtree(own)
            found[variant.name] = Found(*values) if values else None
            print(f"{variant.name}: {found[variant.name] or '-'}", flush=True)

        for groups in (SAMPLE, {group: 1 for group, every in SAMPLE.items() if every > 1}):
            left = [each for each in VARIANTS if re.search(only, each.name)]
            left = [each for each in left if found.get(each.name) is None]
            with ThreadPoolExecutor(WORKERS) as pool:
                list(pool.map(one, left, [groups] * len(left)))
    return found


def table(found: dict[str, Found | None]) -> str:
    """Return Markdown: a line for each thing that was changed."""
    rows: dict[str, dict[str, str]] = {}
    for variant in VARIANTS:
        if variant.name in found:
            how = variant.name.rpartition(" ")[2]
            rows.setdefault(variant.thing, {})[how] = str(found[variant.name] or "-")
    lines = ["| what | without it | halved | doubled | kept for |", "|---|---|---|---|---|"]
    for thing, cells in rows.items():
        shown = [thing, *(cells.get(how, "") for how in HOW), KEPT.get(thing, "")]
        lines.append(" | ".join(["", *shown, ""]).strip().replace("  ", " "))
    return "\n".join(lines)
