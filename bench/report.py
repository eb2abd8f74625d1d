"""Bars, and the table that `docs/benchmarks.md` shows."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from bench.timing import Timing

DOCS = Path(__file__).resolve().parent.parent / "docs"


class Row(NamedTuple):
    """One figure against its bar; ``peer`` is HAMi-core's, from its own -O2 build on a stub."""

    what: str
    plain: float
    with_cgpu: float
    added: float
    bar: float | None
    unit: str
    peer: str = ""

    @property
    def met(self) -> bool:
        """Whether what cgpu adds stays within the bar."""
        return self.bar is None or self.added <= self.bar


CALLS = {
    "launch_native": ("cuLaunchKernel, policy 5", 3, "21"),
    "launch_lone": ("cuLaunchKernel, lone container", 10, "22.7"),
    "launch_contended": ("cuLaunchKernel, contended", 15, "22.7"),
    "launch_and_mark": ("cuLaunchKernel, contended, with a marker (one per batch)", None, ""),
    "pair_live_0": ("alloc + free pair, nothing live", 200, "480"),
    "pair_live_1000": ("alloc + free pair, 1,000 live", 200, "2,140"),
    "pair_live_10000": ("alloc + free pair, 10,000 live", 200, "16,340"),
    "small_pair_live_0": ("the same of 4,000 bytes, nothing live", 200, ""),
    "small_pair_live_1000": ("the same of 4,000 bytes, 1,000 live", 200, ""),
    "small_pair_live_10000": ("the same of 4,000 bytes, 10,000 live", 200, ""),
    "mem_get_info": ("cuMemGetInfo", 60, "450"),
}


def call_rows(calls: dict[str, dict[str, float]]) -> list[Row]:
    """Rows of the calls; two threads are compared with one thread of the same run."""
    rows = [
        Row(
            what,
            figure["plain_ns"],
            figure["proxied_ns"],
            figure["added_ns"] + 0.0,
            bar,
            "ns",
            peer,
        )
        for name, (what, bar, peer) in CALLS.items()
        for figure in (calls[name],)
    ]
    one, two = calls["pair_1_thread"]["proxied_ns"], calls["pair_2_threads"]["proxied_ns"]
    added = round(two - one, 1)
    rows.append(Row("time per pair, 2 threads against 1 thread", one, two, added, 0, "ns"))
    return rows


STARTS = [
    ("docker run --rm, capped", "run plain", "run capped", 25),
    ("docker run --rm, not capped", "run plain", "run not capped", 3),
    ("docker exec", "exec plain", "exec capped", 3),
    ("cgpu-run /bin/true", "true plain", "true capped", 22),
]


def start_rows(times: dict[str, Timing]) -> list[Row]:
    """Rows of the start-up times: medians of the differences within a round."""
    rows = []
    for what, plain, capped, bar in STARTS:
        without, with_cgpu = times[plain], times[capped]
        added = with_cgpu.beyond(without)
        rows.append(Row(what, without.median_ms, with_cgpu.median_ms, added, bar, "ms"))
    return rows


def table(rows: list[Row]) -> str:
    """Markdown table of ``rows``."""
    lines = [
        "| figure | without | with cgpu | added | bar | met | peer adds |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        bar = "-" if row.bar is None else f"<= {row.bar:g} {row.unit}"
        lines.append(
            f"| {row.what} | {row.plain:g} {row.unit} | {row.with_cgpu:g} {row.unit} "
            f"| {row.added:g} {row.unit} | {bar} | {'yes' if row.met else '**no**'} "
            f"| {row.peer and row.peer + ' ' + row.unit} |"
        )
    return "\n".join(lines)


def write_page(name: str, section: str, heading: str, shown: str) -> None:
    """Replace what a page of docs shows between the two markers of ``section``."""
    path = DOCS / f"{name}.md"
    page = path.read_text()
    begin, end = f"<!-- {section}: begin -->", f"<!-- {section}: end -->"
    before, rest = page.split(begin)
    _, after = rest.split(end)
    path.write_text(f"{before}{begin}\n{heading}\n\n{shown}\n{end}{after}")
