"""Programs that compute beside each other on a simulated GPU, and what each really got of it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import operator
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cgpu_sim import gpu_times
from lab.driver.real_driver import cache_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

PROGRAMS = Path(__file__).resolve().parents[2] / "programs" / "compute"
FLAGS = ("-target", "x86_64-linux-gnu.2.17", "-std=gnu11", "-O2", "-lpthread", "-ldl")
TAG = "CGPU_SIM_TAG"
LATE_PERCENT = 5  # on a quiet machine up to 2, with 16 programs that launch at once
TRIES = 4


def spin_program() -> Path:
    """``programs/compute/spin.c``."""
    return built("spin")


def built(name: str) -> Path:
    """``programs/compute/NAME.c``, built once for whatever C library a container has."""
    source = PROGRAMS / f"{name}.c"
    recipe = source.read_bytes() + repr(FLAGS).encode()
    cache = cache_directory()
    target = cache / f"{name}-{hashlib.sha256(recipe).hexdigest()[:12]}"
    with (cache / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            made = target.with_suffix(".new")
            compiler = [sys.executable, "-m", "ziglang", "cc"]
            subprocess.run([*compiler, *FLAGS, "-o", made, source], check=True)
            made.rename(target)
    return target


class Shares(NamedTuple):
    """What was had of a GPU in some seconds.

    Attributes:
        points: of the GPU's time, in percent, by tag.
        idle: percent of the time that nobody had.
    """

    points: dict[str, float]
    idle: float

    def parts(self) -> dict[str, float]:
        """Each one's part of what all of them had, in percent."""
        total = sum(self.points.values())
        return {tag: 100 * had / total for tag, had in self.points.items()}

    def __str__(self) -> str:
        had = ", ".join(f"{tag} {points:.2f}" for tag, points in self.points.items())
        return f"{had}, idle {self.idle:.2f}"


def read_times(driver: Path, gpu: int = 0) -> dict[str, int]:
    """GPU time in ns had by the living processes of each tag."""
    times: dict[str, int] = {}
    for process in gpu_times(driver, gpu):
        times[process.tag] = times.get(process.tag, 0) + process.busy_ns
    return times


def prefer(pids: Iterable[int]) -> None:
    """Let processes go before whatever else the machine does, where we may: all their threads.

    A share is measured of who has work for the GPU; a launch that comes late because other
    programs have the CPUs is time that its container held and did not use. A high priority does
    not suffice: a busy program keeps its CPU for up to 3 ms before one of higher priority has it.
    Threads of cgpu go before those of programs, which could keep a CPU from them for 100 ms.
    """
    for thread in _threads(pids):
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{thread}/comm").read_text()
            priority = 2 if name.startswith("cgpu-") else 1
            os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(priority))


@contextlib.contextmanager
def preferring() -> Iterator[None]:
    """What the calling thread starts meanwhile is preferred from its first moment on."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def favour(pids: Iterable[int]) -> None:
    """Give processes a high priority only, so that others get the CPUs whatever fails."""
    for thread in _threads(pids):
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, -15)


def waited_ns(pids: Iterable[int]) -> int:
    """How long all threads of processes have been ready to run and had no CPU, in ns."""
    return sum(_waited_by_thread(pids).values())


def _waited_by_thread(pids: Iterable[int]) -> dict[int, int]:
    """Source: the second figure of ``/proc/PID/task/TID/schedstat``."""
    waited = {}
    for thread in _threads(pids):
        with contextlib.suppress(OSError):
            waited[thread] = int(Path(f"/proc/{thread}/schedstat").read_text().split()[1])
    return waited


def _threads(pids: Iterable[int]) -> Iterator[int]:
    for pid in pids:
        with contextlib.suppress(OSError):
            yield from [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]


def measure(driver: Path, tags: Iterable[str], seconds: float) -> Shares:
    """The true shares of the next ``seconds``, from the simulated GPU's own account."""
    return measure_while(driver, tags, lambda: time.sleep(seconds))


def measure_on_time(
    driver: Path, tags: Iterable[str], seconds: float, servers: list[int]
) -> Shares:
    """Likewise, of the first ``seconds`` in which every thread had a CPU when it wanted one.

    A share means nothing while a program cannot launch, or cgpu cannot run, for want of a CPU. On
    a machine where that never holds, those of the time in which the latest thread waited least.
    """
    found: list[tuple[float, Shares]] = []
    tags = list(tags)
    while len(found) < TRIES and (not found or found[-1][0] > LATE_PERCENT):
        pids = [*servers, *(process.pid for process in gpu_times(driver))]
        prefer(pids)
        began, before = time.monotonic_ns(), _waited_by_thread(pids)
        shares = measure(driver, tags, seconds)
        whole, after = time.monotonic_ns() - began, _waited_by_thread(pids)
        there = before.keys() & after.keys()
        waited = max((after[thread] - before[thread] for thread in there), default=0)
        found.append((100 * waited / whole, shares))
        print(f"{shares}; the latest thread {found[-1][0]:.2f}")  # noqa: T201
    return min(found, key=operator.itemgetter(0))[1]


def measure_while(driver: Path, tags: Iterable[str], act: Callable[[], object]) -> Shares:
    """Likewise, of the time that ``act`` takes."""
    began, before = time.monotonic_ns(), read_times(driver)
    act()
    ended, after = time.monotonic_ns(), read_times(driver)
    whole = (ended - began) / 100
    points = {tag: (after[tag] - before[tag]) / whole for tag in tags}
    return Shares(points, 100 - sum(points.values()))


def measure_stopped(
    driver: Path,
    tags: Iterable[str],
    stopped: AbstractContextManager[object],
    server: int,
    act: Callable[[], object],
) -> tuple[float, Shares]:
    """What the first of ``tags`` has while the other is stopped, and both from 0.1 s after that.

    In percent of the time that ``act`` takes, from 0.3 s on. That in which it or the server waited
    for a CPU is nobody's fault, and counts as had.
    """
    first, *_ = tags = list(tags)
    with stopped:
        time.sleep(0.3)
        others = [server, *(p.pid for p in gpu_times(driver) if p.tag == first)]
        waited, began = -waited_ns(others), time.monotonic_ns()
        meanwhile = measure_while(driver, tags, act)
        waited, took = waited + waited_ns(others), time.monotonic_ns() - began
    time.sleep(0.1)
    afterwards = measure(driver, tags, 1)
    late = 100 * waited / took
    print(f"stopped: {meanwhile}, without a CPU {late:.2f}; then {afterwards}")  # noqa: T201
    return meanwhile.points[first] + late, afterwards


def wait_for(driver: Path, tags: Iterable[str], seconds: float = 30) -> None:
    """Until a process of each tag has had some of the GPU."""
    deadline = time.monotonic() + seconds
    missing = list(tags)
    while missing:
        assert time.monotonic() < deadline, f"{missing} had nothing of the GPU"
        time.sleep(0.02)
        times = read_times(driver)
        missing = [tag for tag in missing if not times.get(tag)]
    prefer(process.pid for process in gpu_times(driver))
