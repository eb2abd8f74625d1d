"""The dated JSON of a run, and the short table beside it."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gpu.world import FAILS, NOT_RUN, Outcome, World

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = 1


def _git(*words: str) -> str:
    try:
        done = subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip()


def machine(world: World) -> dict[str, Any]:
    """What the figures belong to."""
    nvml = world.nvml
    gpus = [nvml.name(nvml.gpu(i)) for i in range(nvml.count())]
    tracked = _git("status", "--porcelain", "--untracked-files=no")
    return {
        "gpu": nvml.name(world.gpu),
        "gpus": gpus,
        "memory_bytes": world.total,
        "cap_bytes": world.cap,
        "driver": nvml.driver_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": sys.version.split()[0],
        "torch": world.torch or None,
        "commit": _git("rev-parse", "HEAD") or None,
        "changed": bool(tracked),
        "simulated": world.simulated,
        "processes_before": len(nvml.processes(world.gpu)),
    }


def file_name(facts: dict[str, Any]) -> str:
    """``<date>-<gpu>-driver<version>``, without the ending."""
    slug = re.sub(r"[^a-z0-9]+", "-", facts["gpu"].lower()).strip("-")
    return f"{time.strftime('%Y-%m-%d', time.gmtime())}-{slug}-driver{facts['driver']}"


def _one_line(value: object, width: int = 160) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    text = " ".join(text.split()).replace("|", "\\|")
    return text if len(text) <= width else f"{text[: width - 3]}..."


def _counted(outcomes: list[Outcome]) -> str:
    failed = sum(o.status == FAILS for o in outcomes)
    skipped = sum(o.status == NOT_RUN for o in outcomes)
    held = len(outcomes) - failed - skipped
    return f"{held} hold, {failed} do not, {skipped} were not run."


def _rows(outcomes: list[Outcome]) -> list[str]:
    rows = ["| | statement | under | measured |", "|---|---|---|---|"]
    for o in outcomes:
        output = o.measured or o.reason
        name = o.name.replace("_", " ")
        status = f"**{o.status}**" if o.status == FAILS else o.status
        rows.append(f"| {status} | {name} | {o.cage or '-'} | {_one_line(output)} |")
    return rows


def _overhead(overhead: dict[str, Any]) -> list[str]:
    rows = ["| figure | without | with cgpu | added or ratio |", "|---|---|---|---|"]
    for name, figure in overhead.items():
        if "not_run" in figure:
            rows.append(f"| {name} | not run: {_one_line(figure['not_run'])} | | |")
        else:
            rows.append(f"| {name} | {figure['plain']} | {figure['capped']} | {figure['result']} |")
    return rows


def markdown(facts: dict[str, Any], outcomes: list[Outcome], overhead: dict[str, Any]) -> str:
    """The short table."""
    what = (
        "a rehearsal on the simulated driver: no result about a GPU" if facts["simulated"] else ""
    )
    setting = (
        f"Kernel {facts['kernel']}, {facts['machine']}, torch {facts['torch'] or 'none'}, cgpu"
        f" {facts['commit'] or 'unknown'}{' (changed)' if facts['changed'] else ''}."
        f" {facts['processes_before']} other processes on the GPU at the beginning."
    )
    lines = [
        f"# {facts['gpu']}, driver {facts['driver']}{', ' + what if what else ''}",
        "",
        setting,
        "",
        _counted(outcomes),
        "",
        *_rows(outcomes),
        "",
        *_overhead(overhead),
        "",
    ]
    return "\n".join(lines)


def _with_earlier(
    path: Path, commit: str | None, outcomes: list[Outcome], overhead: dict[str, Any]
) -> tuple[list[Outcome], dict[str, Any]]:
    if not path.exists():
        return outcomes, overhead
    earlier = json.loads(path.read_text())
    if earlier["machine"]["commit"] != commit:
        return outcomes, overhead
    new = {(o.name, o.cage) for o in outcomes}
    kept = [Outcome(**c) for c in earlier["checks"] if (c["name"], c["cage"]) not in new]
    return kept + outcomes, earlier["overhead"] | overhead


def write(
    folder: Path, facts: dict[str, Any], outcomes: list[Outcome], overhead: dict[str, Any]
) -> list[Path]:
    """Write both files in place of earlier ones of the same day, GPU and driver.

    If the earlier one is of the same commit, what this run did not look at stays: a machine that
    is there for minutes at a time is checked part by part.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{file_name(facts)}.json"
    outcomes, overhead = _with_earlier(path, facts["commit"], outcomes, overhead)
    content = {
        "schema": SCHEMA,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": facts,
        "checks": [o._asdict() for o in outcomes],
        "overhead": overhead,
    }
    path.write_text(json.dumps(content, indent=2) + "\n")
    table = path.with_suffix(".md")
    table.write_text(markdown(facts, outcomes, overhead))
    return [path, table]
