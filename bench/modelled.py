"""Figures of the virtual-time model in ``tests/model``: the real arbiter, a modelled GPU."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from lab.shares.lengths import LENGTHS_US

ROOT = Path(__file__).resolve().parent.parent
NATIVE, MODEL = ROOT / "native", ROOT / "tests" / "model"
PROGRAM = ROOT / "bench" / "_build" / "model"
GRIDS = ((3, 1, 30), (9, 1, 10))  # weights, seconds
# Requests that would take half of the GPU, beside three programs of the same weight.
REQUEST, BESIDE, LATENCY_S = "kernel:100us,sync:20,think:2ms", 3, 30


def build() -> None:
    """Compile the model."""
    PROGRAM.parent.mkdir(exist_ok=True)
    # Not arbiter/thread, which talks to real processes: the model has its own instead.
    parts = ("arbiter", "arbiter/group", "gate", "policy")
    rules = [path for part in parts for path in (NATIVE / part).glob("*.c")]
    sources = [*sorted(MODEL.rglob("*.c")), *sorted(rules)]
    flags = ["-std=gnu11", "-O2", "-D_GNU_SOURCE", f"-I{NATIVE}", f"-I{MODEL}"]
    words = ["gcc", *flags, *map(str, sources), "-o", str(PROGRAM), "-lm"]
    subprocess.run(words, check=True)


def run(*settings: str) -> dict[str, Any]:
    """One scenario; see docs/model.md for its settings and answer."""
    words = [str(PROGRAM), "run", *settings]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def grid(one: int, other: int, seconds: int) -> dict[str, Any]:
    """Distance from the shares of two weights, in points, for each pair of kernel lengths."""
    target = 100 * one / (one + other)
    off, busy = [], []
    for length in LENGTHS_US:
        answers = [
            run(
                "policy=6",
                f"length={seconds}s",
                f"tenant=weight:{one},kernel:{length}us",
                f"tenant=weight:{other},kernel:{beside}us",
            )
            for beside in LENGTHS_US
        ]
        off.append([round(answer["tenants"][0]["share"] - target, 3) for answer in answers])
        busy += [answer["busy"] for answer in answers]
    flat = [abs(value) for row in off for value in row]
    return {
        "target": round(target),
        "seconds": seconds,
        "lengths_us": list(LENGTHS_US),
        "off_points": off,
        "worst_points": max(flat),
        "mean_points": round(sum(flat) / len(flat), 3),
        "least_busy_percent": min(busy),
    }


def latency(length_us: int) -> dict[str, Any]:
    """What is added to requests of 2 ms beside programs that always have work, in ms."""
    found: dict[str, Any] = {"length_us": length_us}
    for name, high in (("ordinary", 0), ("high", 1)):
        answer = run(
            "policy=6",
            f"length={LATENCY_S}s",
            f"tenant=weight:1,{REQUEST},high:{high}",
            *[f"tenant=weight:1,kernel:{length_us}us"] * BESIDE,
        )
        found[name] = answer["tenants"][0]["added_ms"]
    found["bar_ms"] = length_us / 1000 + 1
    return found


def cases() -> list[dict[str, Any]]:
    """The groups of scenarios with bars: how many, how many met theirs, the worst, how busy."""
    words = [str(PROGRAM), "cases"]  # its status is 1 if a bar is missed
    done = subprocess.run(words, check=False, stdout=subprocess.PIPE, text=True)
    groups: dict[str, list[dict[str, Any]]] = {}
    for line in done.stdout.splitlines():
        case = json.loads(line)
        groups.setdefault(case["group"], []).append(case)
    return [summary(name, found) for name, found in groups.items()]


def summary(group: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    """One line for a group; the worst is the one nearest to its bar or farthest beyond."""
    worst = max(found, key=lambda case: float(case["value"]) / (case["bar"] or 1))
    measured = [case for case in found if case["least_busy"] > 0]
    idlest = min(measured, key=lambda case: case["busy"] / case["least_busy"], default=None)
    return {
        "group": group,
        "count": len(found),
        "met": sum(case["met"] for case in found),
        "worst": {key: worst[key] for key in ("name", "value", "bar")},
        "busy": idlest and {"percent": idlest["busy"], "bar": idlest["least_busy"]},
    }


def measure() -> dict[str, Any]:
    """Scenarios with bars, both grids, and latencies by kernel length."""
    build()
    return {
        "cases": cases(),
        "grids": [grid(*each) for each in GRIDS],
        "latency": [latency(length) for length in LENGTHS_US],
    }
