"""Limits that are seen from outside: nvidia-smi beside a stranger, and a program that is killed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time

from gpu.check import CHUNK, HOST, MIB, Finding, NotRunError, check
from gpu.world import World, stop

HELD = 200 * MIB
HOLDER = f"""
import sys
from gpu.interface.driver import Driver
driver = Driver()
driver.start()
driver.alloc({HELD})
print("ready", flush=True)
sys.stdin.read()
"""
QUERY = ["--query-gpu=memory.total,memory.used", "--format=csv,noheader,nounits"]


def holder(world: World, *, capped: bool) -> subprocess.Popen[str]:
    """A program that holds 200 MiB until its standard input ends.

    Raises:
        RuntimeError: it does not get them.
    """
    process = world.start([sys.executable, "-c", HOLDER], capped=capped)
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        stop(process)
        raise RuntimeError("a program that allocates 200 MiB failed")
    return process


@check("limits", HOST)
def nvidia_smi_shows_the_share_and_no_stranger(world: World) -> Finding:
    """nvidia-smi under the cap shows the cap as total, and no process of others.

    In whole MiB, rounded up or down, while a stranger holds memory on the GPU.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        raise NotRunError("no nvidia-smi")
    stranger = holder(world, capped=False)
    try:
        figures = world.run([program, "-i", str(world.index), *QUERY], capped=True)
        shown = world.run([program, "-i", str(world.index)], capped=True)
        pids = set(world.nvml.processes(world.gpu))
    finally:
        stop(stranger)
    found = re.match(r"(\d+), (\d+)", figures.out)
    if found is None:
        raise RuntimeError(f"nvidia-smi ended with {figures.code}: {figures.log.strip()[-300:]}")
    total, used = (int(g) for g in found.groups())
    text = shown.out + shown.log
    strangers = sorted(pid for pid in pids if re.search(rf"\b{pid}\b +[CG]\b", text))
    measured = {"total": total, "used": used, "cap": world.cap / MIB, "strangers": strangers}
    fits = total in {world.cap // MIB, -(-world.cap // MIB)}
    return Finding(fits and used == 0 and not strangers and shown.code == 0, measured)


@check("limits", HOST)
def a_killed_program_gives_everything_back(world: World) -> Finding:
    """When a capped program is killed, driver and ledger give back what it held within seconds."""
    before = world.used()
    process = holder(world, capped=True)
    during = world.used() - before
    stop(process)
    process.wait()
    deadline = time.monotonic() + 5
    while world.used() - before > CHUNK and time.monotonic() < deadline:
        time.sleep(0.05)
    after = world.used() - before
    return Finding(during >= HELD and after <= CHUNK, {"held": during, "afterwards": after})
