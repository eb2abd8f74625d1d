"""Faults of the server."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from faults.containers import HELD, pick, replace_containers, wake
from faults.processes import is_stopped, kill
from faults.world import GPUS, World
from lab.containers.enclosure import wait_until
from lab.driver.stopping import send, stop
from lab.machine.node import RUNC

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random


def kill_server(world: World, rng: Random) -> str:
    """By SIGKILL; everyone goes on meanwhile, and the next container starts another one."""
    kill([world.server()])
    seconds = rng.uniform(0, 1.5)
    before = computed(world)
    time.sleep(seconds + 0.5)
    assert computed(world) > before, "nobody computed without a server"
    wake(world)
    return f"{seconds:.1f} s without"


def computed(world: World) -> int:
    """GPU time, in ns, of the programs that live, by the GPUs' own account."""
    return sum(p.busy_ns for gpu in range(GPUS) for p in world.books(gpu))


def stop_server(world: World, rng: Random) -> str:
    """It stands still; containers start without it, unless it has the lock."""
    pid, seconds = world.server(), rng.uniform(0.3, 3)
    probe = world.new(rng.randrange(GPUS), RUNC)
    command = world.run_command(probe, world.write_bundle(probe, HELD))
    stop(world.node.driver, pid)
    try:
        time.sleep(seconds / 2)
        maker = world.begin(command, probe)  # it waits, if the server has the registry's lock
        time.sleep(seconds / 2)
        assert is_stopped(pid)
        waits = probe.name not in world.names()
    finally:
        send([pid], signal.SIGCONT)
    assert world.wait(maker) == 0, world.output(probe)
    world.delete(probe)
    return f"for {seconds:.1f} s{', with the lock' if waits else ''}"


def replace_server(world: World, rng: Random) -> str:
    """By ``--replace``: one, or several at once."""
    count = rng.randint(1, 3)
    before = world.server()
    for _ in range(count):
        world.cgpud("--replace")
    wait_until(lambda: world.server() not in (0, before), "another server")
    return f"by {count}"


def starve_server(world: World, rng: Random) -> str:
    """It gets hardly any of the processors while containers come and go."""
    pid, seconds = world.server(), rng.uniform(0.5, 2)
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    tasks = [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
    try:
        for task in tasks:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, task, 19)
        replace_containers(world, rng)
        time.sleep(seconds)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
        for task in tasks:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, task, 0)
    return f"for {seconds:.1f} s"


@contextlib.contextmanager
def _limited(pid: int, kind: int, value: int) -> Iterator[None]:
    soft, hard = resource.prlimit(pid, kind)
    resource.prlimit(pid, kind, (value, hard))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, kind, (soft, hard))


def _churn(world: World, rng: Random) -> None:
    replace_containers(world, rng)
    with contextlib.suppress(AssertionError):  # there may be no room for it under this fault
        wake(world)
    world.set(pick(world, rng).id, f"weight={rng.choice([1, 2])}")


def no_descriptors(world: World, rng: Random) -> str:
    """The server can open nothing more, while containers come and go."""
    pid = world.server()
    spare = rng.randint(0, 3)
    most = len(os.listdir(f"/proc/{pid}/fd")) + spare
    with _limited(pid, resource.RLIMIT_NOFILE, most):
        _churn(world, rng)
        time.sleep(1.2)
    assert world.server() == pid, "the server ended"
    return f"{spare} spare"


def no_memory(world: World, rng: Random) -> str:
    """The server gets no more memory, while containers come and go; it may end of it."""
    pid = world.server()
    facts = Path(f"/proc/{pid}/status").read_text().split("VmSize:")[1].split()[0]
    spare = rng.choice([0, 64, 1024])
    with _limited(pid, resource.RLIMIT_AS, (int(facts) + spare) << 10):
        _churn(world, rng)
        time.sleep(1.2)
    ended = world.server() != pid
    wake(world)
    return f"{spare} KiB spare{', it ended' if ended else ''}"
