"""``make bench``: measure, compare with the bars, write the results."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

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
    return {"processor": f"{model}, {cores} cores", "kernel": platform.release(), "commit": commit}


def main() -> int:
    """Run every benchmark; 1 if a bar is missed."""
    from bench import calls, report, start  # noqa: PLC0415 (the tests' modules are found by then)

    machine = _machine()
    called, contained, ran = calls.measure(), start.containers(), start.programs()
    started = contained | ran
    rows = report.call_rows(called) + report.start_rows(started)
    today = dt.datetime.now(tz=dt.timezone.utc).date().isoformat()
    figures = {
        "date": today,
        "machine": machine,
        "calls_ns": called,
        "start_ms": {name: timing._asdict() for name, timing in started.items()},
        "bars": [{**row._asdict(), "met": row.met} for row in rows],
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{today}-cpu.json").write_text(json.dumps(figures, indent=2) + "\n")
    heading = (
        f"{today}, {machine['processor']}, Linux {machine['kernel']}, commit {machine['commit']}."
    )
    report.write_page(rows, heading)
    print(report.table(rows))
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    for folder in ("", "native", "shim", "hook", "cli", "tests", "tests/sim"):
        sys.path.insert(1, str(ROOT / folder))
    sys.exit(main())
