"""Programs that launch without a pause, and how long faults of others keep them from it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import psutil

from lab.shares.compute import waited_ns
from lab.shares.gatewatch import Watched

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

TIMES = 100
LONGER_MS = 250
_AFTER = 0.08  # seconds in which a fault may show once the other has launched again
_FRESH_NS = 100_000_000  # an arbiter gives a sign of life every 50 ms


class Report(NamedTuple):
    """What ``compute/spin.c`` answers: launches so far, and the longest time without one."""

    launches: int
    gap_ms: float


def is_open(watched: Watched) -> bool:
    """Whether a container's gate stands open."""
    return bool(watched.limits.gpus[0].gate & 3)


class Player:
    """One program under ``cgpu-run``, and its session's folder."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process, self.folder = process, folder
        self.watched = Watched(folder)

    def report(self) -> Report:
        """Ask a spinning program for its figures since the last time."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write("\n")
        stdin.flush()
        launches, gap_us = stdout.readline().split()
        return Report(int(launches), int(gap_us) / 1000)

    def waited_ms(self) -> float:
        """How long its program's threads have been ready to run and had no CPU."""
        program = psutil.Process(self.process.pid)
        return waited_ns(each.pid for each in (program, *program.children(recursive=True))) / 1e6

    def is_arbitrated(self) -> bool:
        """Whether an arbiter has given a sign of life lately."""
        return time.monotonic_ns() - int(self.watched.limits.gpus[0].heartbeat_ns) < _FRESH_NS

    def holds(self) -> bool:
        """Whether its gate stands open."""
        return is_open(self.watched)


def usual_gap_ms(player: Player) -> float:
    """The longest time without a launch in some seconds without faults."""
    player.report()
    time.sleep(3)
    return player.report().gap_ms


def gate_looks(watched: Watched, seconds: float) -> Iterator[bool]:
    """Whether a container's gate stands open, again and again."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield is_open(watched)
        time.sleep(0.002)


def gap_after(players: list[Player], fault: Callable[[], object]) -> float:
    """The longest time without a launch of any of the PLAYERS that goes back to the fault, in ms.

    That in which they waited for a CPU is nobody's fault, and does not count.
    """
    waited = [-player.waited_ms() for player in players]
    for player in players:
        player.report()
    fault()
    worst = [0.0] * len(players)
    for number, player in enumerate(players):
        report = first = player.report()
        while report.launches == first.launches:
            worst[number] = max(worst[number], report.gap_ms)
            time.sleep(0.005)
            report = player.report()
        worst[number] = max(worst[number], report.gap_ms)
    time.sleep(_AFTER)
    return max(
        max(before, player.report().gap_ms) - since - player.waited_ms()
        for player, before, since in zip(players, worst, waited, strict=True)
    )


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not in {seconds} s: {what}"
        time.sleep(0.0001)


def judge(name: str, usual: float, gaps: list[float]) -> None:
    """Print what was measured, and hold it against the promise."""
    worst, middle = max(gaps), sorted(gaps)[len(gaps) // 2]
    print(f"{name}: usual {usual:.1f} ms, median {middle:.1f}, worst {worst:.1f}")  # noqa: T201
    assert worst - usual <= LONGER_MS, sorted(gaps)[-10:]
