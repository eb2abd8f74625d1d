"""``make bench``: measure, compare with the bars, write the results."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"


def _machine() -> dict[str, str]:
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    commit = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.strip()
    cores = len(os.sched_getaffinity(0))
    return {
        "processor": f"{model}, {cores} cores",
        "kernel": ".".join(platform.release().split(".")[:2]),  # the rest is the distributor's
        "commit": commit,
        "load": f"{os.getloadavg()[0]:.1f}",
    }


def _cost() -> tuple[dict[str, Any], str, bool]:
    """Measure what cgpu adds to calls and to starting.

    Returns:
        The figures, their table, and whether all bars are met.
    """
    from bench import calls, report, start  # noqa: PLC0415 (the tests' modules are found by then)

    called, contained, ran = calls.measure(), start.containers(), start.programs()
    started = contained | ran
    rows = report.call_rows(called) + report.start_rows(started)
    figures = {
        "calls_ns": called,
        "start_ms": {name: timing._asdict() for name, timing in started.items()},
        "bars": [{**row._asdict(), "met": row.met} for row in rows],
    }
    return figures, report.table(rows), all(row.met for row in rows)


def _shares() -> tuple[dict[str, Any], str, bool]:
    """Measure shares of GPU time in the same way, and draw their pictures."""
    from bench import shares  # noqa: PLC0415

    figures = shares.measure()
    lines = shares.lines(figures)
    figures["bars"] = [{**line._asdict(), "met": line.met} for line in lines]
    for name in shares.draw(figures):
        print(f"drew docs/{name}")
    return figures, shares.table(lines), all(line.met for line in lines)


def _ablation() -> tuple[dict[str, Any], str, bool]:
    """The model's figures when a part of the gate is changed; they have no bar of their own."""
    from bench.ablation.measure import measure, table  # noqa: PLC0415

    found = measure()
    figures = {name: each and each._asdict() for name, each in found.items()}
    return {"missed": figures}, table(found), True


def _kubernetes() -> tuple[dict[str, Any], str, bool]:
    """Measure the scheduler's extender, in one process and with the real Kubernetes."""
    from bench import cluster, groups, kubernetes, shares, units  # noqa: PLC0415

    figures = kubernetes.measure() | groups.measure() | units.measure() | cluster.measure()
    lines = kubernetes.lines(figures) + groups.lines(figures)
    lines += units.lines(figures) + cluster.lines(figures)
    figures["bars"] = [{**line._asdict(), "met": line.met} for line in lines]
    return figures, shares.table(lines), all(line.met for line in lines)


def _claims() -> tuple[dict[str, Any], str, bool]:
    """Measure claims, with the real Kubernetes; needs root."""
    from bench import shares  # noqa: PLC0415
    from bench.claims import measure  # noqa: PLC0415

    figures = measure.measure()
    lines = measure.lines(figures)
    figures["bars"] = [{**line._asdict(), "met": line.met} for line in lines]
    return figures, shares.table(lines), all(line.met for line in lines)


def _attacks() -> tuple[dict[str, Any], str, bool]:
    """Measure how long users and containers can delay root's work; needs root."""
    from bench import attacks  # noqa: PLC0415

    figures = attacks.measure()
    return figures, attacks.table(figures), attacks.is_met(figures)


def _known_claims() -> list[str]:
    """Return the part of claims, which belong to the figures of a newer Kubernetes."""
    from bench.claims import measure  # noqa: PLC0415

    return ["claims"] * measure.are_known()


# Part -> ending of its file of results, page and section of docs, how it is measured.
PARTS = {
    "cost": ("cpu", "benchmarks", "figures", _cost),
    "shares": ("shares", "benchmarks", "shares", _shares),
    "kubernetes": ("kubernetes", "benchmarks", "kubernetes", _kubernetes),
    "claims": ("claims", "benchmarks", "claims", _claims),
    "attacks": ("attacks", "benchmarks", "attacks", _attacks),
    "ablation": ("ablation", "model", "ablation", _ablation),
}
USUAL = ("cost", "shares")


def main() -> int:
    """Run the usual benchmarks, or one part; 1 if a bar is missed."""
    from bench import report  # noqa: PLC0415

    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--part", choices=PARTS, action="append", help="this part only")
    machine, met = _machine(), True
    today = dt.datetime.now(tz=dt.timezone.utc).date().isoformat()
    heading = (
        f"{today}, {machine['processor']} (load {machine['load']} at the beginning),"
        f" Linux {machine['kernel']}, commit {machine['commit']}."
    )
    RESULTS.mkdir(exist_ok=True)
    parts = parser.parse_args().part or USUAL
    if "kubernetes" in parts:
        parts = [*parts, *_known_claims()]
    for part in dict.fromkeys(parts):
        ending, page, section, measure = PARTS[part]
        figures, shown, good = measure()
        content = {"date": today, "machine": machine, **figures}
        (RESULTS / f"{today}-{ending}.json").write_text(json.dumps(content, indent=2) + "\n")
        report.write_page(page, section, heading, shown)
        print(shown)
        met = met and good
    return 0 if met else 1


if __name__ == "__main__":
    products = ("native", "shim", "node", "hook", "server", "cli", "k8s")
    for folder in ("", *products, "tests", "tests/sim"):
        sys.path.insert(1, str(ROOT / folder))
    sys.exit(main())
