"""The ablation: each learner, mode and constant of the gate changed, and what the model then shows.

A variant is a copy of the sources with one change. Its scenarios are run group by group, and it is
over as soon as a bar is missed: a sample of each group first, then every scenario of all groups for
what was switched off. Nothing in the sources knows of this.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from bench.ablation_variants import KEPT, VARIANTS, Variant
from bench.modelled import MODEL, NATIVE, PROGRAM

PARTS = ("arbiter", "gate", "policy")
LONGEST_S = 60  # of the processor for one group
HOW = ("off", "halved", "doubled")
OBJECTS = PROGRAM.parent / "ablation"
FLAGS = ("-std=gnu11", "-O2", "-D_GNU_SOURCE")
# Group -> only every so-many-th of its worlds in the sample. Those that are cheap come first.
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
    "long-shares": 4,
    "window-20s": 7,
}
# What has one figure of many worlds cannot be sampled.
WHOLE = ("fault", "pair-fault", "meet")


class Found(NamedTuple):
    """The figure of a variant that misses a bar; ``usual``: without the change."""

    case: str
    usual: float
    figure: float
    bar: float

    def __str__(self) -> str:
        """As a cell of the table shows it."""
        return f"{self.case}: {self.usual:.4g} to **{self.figure:.4g}**, {self.bar:.4g}"


def _sources(folder: Path) -> list[Path]:
    return [
        *sorted((folder / "model").glob("*.c")),
        *(path for part in PARTS for path in sorted((folder / "native" / part).glob("*.c"))),
    ]


def _copy(folder: Path) -> None:
    shutil.copytree(MODEL, folder / "model")
    for part in PARTS:
        shutil.copytree(NATIVE / part, folder / "native" / part)
    for header in NATIVE.glob("*.h"):
        shutil.copy(header, folder / "native")


def _compile(folder: Path, source: Path) -> str:
    """The object of ``source``; made once for what the preprocessor leaves of it."""
    words = ["gcc", *FLAGS, "-P", "-iquote", "native", "-iquote", "model"]
    name = str(source.relative_to(folder))
    text = subprocess.run([*words, "-E", name], cwd=folder, check=True, stdout=subprocess.PIPE)
    target = OBJECTS / f"{hashlib.sha256(text.stdout).hexdigest()[:24]}.o"
    if not target.exists():
        temporary = folder / f"{target.name}.{os.getpid()}"
        subprocess.run([*words, "-c", name, "-o", str(temporary)], cwd=folder, check=True)
        shutil.move(temporary, target)
    return str(target)


def build(folder: Path, variant: Variant | None) -> Path:
    """The model with one change, in ``folder``."""
    OBJECTS.mkdir(parents=True, exist_ok=True)
    _copy(folder)
    if variant is not None:
        path = folder / variant.path
        path.write_text(variant.changed(path.read_text()))
    program = folder / "program"
    objects = [_compile(folder, source) for source in _sources(folder)]
    subprocess.run(["gcc", *objects, "-o", str(program), "-lm"], check=True)
    return program


def cases(program: Path, group: str, every: int = 1) -> list[dict[str, Any]]:
    """The figures of a group; one that does not come to an end has missed its bar."""
    words = ["prlimit", f"--cpu={LONGEST_S}", str(program), "cases", group, str(every)]
    done = subprocess.run(words, check=False, stdout=subprocess.PIPE, text=True)
    lines = [re.sub(r"-?\bnan\b|\binf\b", "1e9", line) for line in done.stdout.splitlines()]
    found = [json.loads(line) for line in lines if line.endswith("}")]
    if done.returncode not in (0, 1):
        found.append({"group": group, "name": "never ends", "value": 1e9, "bar": 1, "met": False})
    return [case for case in found if case["group"] == group]


def plan(*, off: bool) -> list[tuple[str, int]]:
    """Groups in the order in which a variant runs them, and which part of each."""
    groups = [*SAMPLE.items(), *((group, 1) for group in WHOLE)]
    if off:
        groups += [(group, 1) for group, every in SAMPLE.items() if every > 1]
    return groups


Usual = dict[tuple[str, int], dict[str, dict[str, Any]]]


def _usual(program: Path, *, off: bool) -> Usual:
    """The figures of the sources as they are."""
    with ThreadPoolExecutor(2) as pool:
        found = {key: pool.submit(cases, program, *key) for key in plan(off=off)}
    return {key: {case["name"]: case for case in done.result()} for key, done in found.items()}


def _beyond(case: dict[str, Any]) -> float:
    """How many times its bar a figure is; a bar may be 0."""
    return float(case["value"]) / (case["bar"] or 1)


def missed(found: list[dict[str, Any]], usual: dict[str, dict[str, Any]]) -> Found | None:
    """The figure that misses its bar by most; None: all meet theirs."""
    late = [case for case in found if not case["met"]]
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


def examine(variant: Variant, usual: Usual, folder: Path) -> Found | None:
    """Run ``variant`` group by group until it misses a bar."""
    program = build(folder, variant)
    for key in plan(off=variant.off):
        found = missed(cases(program, *key), usual[key])
        if found is not None:
            return found
    return None


def measure(only: str = "") -> dict[str, Found | None]:
    """By its name, every variant that matches ``only``; on two processors."""
    chosen = [variant for variant in VARIANTS if re.search(only, variant.name)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        off = any(variant.off for variant in chosen)
        usual = _usual(build(folder / "usual", None), off=off)

        def one(numbered: tuple[int, Variant]) -> Found | None:
            found = examine(numbered[1], usual, folder / str(numbered[0]))
            shutil.rmtree(folder / str(numbered[0]))
            print(f"{numbered[1].name}: {found or '-'}", flush=True)
            return found

        with ThreadPoolExecutor(2) as pool:
            found = pool.map(one, enumerate(chosen))
        return dict(zip((variant.name for variant in chosen), found, strict=True))


def table(found: dict[str, Found | None]) -> str:
    """Markdown: a line for each thing that was changed."""
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
