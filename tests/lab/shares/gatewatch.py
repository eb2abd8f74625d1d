"""Watch turns: ``gatewatch.py STATE_DIR [SECONDS [INTERVAL_US]]`` prints every change of a gate.

A tool for people who look for the reason of a wrong share. It maps the limits pages and ledgers of
all containers of a state directory and looks at them over and over: a line for each change of a
gate, with what the container's processes say at that moment, and figures at the end.
"""

from __future__ import annotations

import mmap
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "native")]

from cgpu_native._native import ffi, lib  # noqa: E402

STATES = ("closed", "open", "pressed", "free")


class Watched:
    """One container: its limits page and ledger, mapped."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self._maps = [_map(folder / "limits"), _map(folder / "ledger")]
        self.limits = ffi.cast("struct cgpu_limits *", ffi.from_buffer(self._maps[0]))
        self.ledger = ffi.cast("struct cgpu_ledger_file *", ffi.from_buffer(self._maps[1]))
        self.word = self.limits.gpus[0].gate
        self.since = time.monotonic_ns()
        self.spent = dict.fromkeys(STATES, 0)
        self.turns = 0

    def look(self, now: int) -> str | None:
        """What to print if the gate has changed."""
        word = self.limits.gpus[0].gate
        if word == self.word:
            return None
        before, after = STATES[self.word & 3], STATES[word & 3]
        length = now - self.since
        self.spent[before] += length
        self.turns += before == "closed"
        self.word, self.since = word, now
        return f"{before} {length / 1e6:.3f} ms -> {after}  {self.works(now)}"

    def works(self, now: int) -> str:
        """What its processes say."""
        output = []
        for i in range(self.ledger.work_bound):
            work = self.ledger.works[i]
            if work.owner == 0:
                continue
            flags = "".join(
                letter if on else "-"
                for letter, on in zip(
                    "awic", (work.active, work.waiting, work.idle, work.certain), strict=True
                )
            )
            end = (work.end_ns - now) / 1e6 if work.end_ns else 0.0
            output.append(f"[{flags} end {end:+.3f} busy {work.busy_ns / 1e6:.1f}]")
        return " ".join(output)

    def figures(self, now: int) -> str:
        """A line about it."""
        gpu = self.limits.gpus[0]
        spent = {**self.spent, "now": 0}
        spent[STATES[self.word & 3]] += now - self.since
        shares = " ".join(f"{k} {v / 1e6:.0f} ms" for k, v in spent.items() if v)
        age = (now - gpu.heartbeat_ns) / 1e6 if gpu.heartbeat_ns else -1.0
        charged = f"charged {gpu.charged_ns / 1e6:.1f} ms measured {gpu.measured_ppm / 1e4:.2f} %"
        limit = f"limit {gpu.limit_ppm / 1e4:.2f} % fallback {gpu.share_ppm / 1e4:.2f} %"
        return f"{self.turns} turns; {shares}; {charged} {limit} heartbeat {age:.1f} ms ago"


def _map(path: Path) -> Any:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


def main() -> None:
    """Watch."""
    assert lib is not None
    state = Path(sys.argv[1])
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 2.0
    interval = (int(sys.argv[3]) if len(sys.argv) > 3 else 200) / 1e6
    watched = [Watched(p) for p in sorted((state / "containers").iterdir()) if p.name[0] != "."]
    began = time.monotonic_ns()
    while (now := time.monotonic_ns()) < began + seconds * 1e9:
        for number, container in enumerate(watched):
            if line := container.look(now):
                print(f"{(now - began) / 1e6:10.3f} {number} {line}")  # noqa: T201
        time.sleep(interval)
    for number, container in enumerate(watched):
        now = time.monotonic_ns()
        print(f"{number} {container.name}: {container.figures(now)} {container.works(now)}")  # noqa: T201


if __name__ == "__main__":
    main()
