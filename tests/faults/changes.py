"""Faults of changes, of the tools that make them, and of the state directory."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import time
from typing import TYPE_CHECKING

from faults.containers import BRIEF, pick, replace_containers, wake
from faults.member import CAP_GIB, GIB, Member
from faults.processes import kill
from faults.servers import computed
from faults.world import GPUS, TREE, World
from lab.containers.enclosure import wait_until
from lab.driver.stopping import send
from lab.machine.node import RUNC

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random


# The state directory.


@contextlib.contextmanager
def _full(world: World, rng: Random) -> Iterator[str]:
    """No space, or no inode, on its file system."""
    filler = world.state / "filler"
    space = rng.random() < 0.5
    if space:
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(65536))
    else:
        filler.mkdir()
        with contextlib.suppress(OSError):
            for number in range(1 << 20):
                (filler / str(number)).touch()
    try:
        yield "no space" if space else "no inodes"
    finally:
        filler.unlink() if space else shutil.rmtree(filler)


def full_state(world: World, rng: Random) -> str:
    """Nothing can be written: creation is refused with a sentence, changes too, removal works."""
    kills = rng.random() < 0.3
    with _full(world, rng) as how:
        probe = world.new(rng.randrange(GPUS), RUNC)
        done = world.create(probe, BRIEF)
        assert done.returncode != 0, f"{how}: {probe} was made"
        assert "No space left" in world.output(probe), world.output(probe)
        world.set(pick(world, rng).id, "weight=1")
        replace_containers(world, rng)
        if kills:
            kill([world.server()])
            time.sleep(0.3)
    if kills:
        wake(world)
    return how + (", and the server killed" if kills else "")


# Changes.


def change(world: World, rng: Random) -> str:
    """Caps and weights, by ``cgpu set`` and by the tree, while everyone allocates."""
    printed = []
    for _ in range(rng.randint(1, 4)):
        member = pick(world, rng)
        if rng.random() < 0.5:
            printed.append(_change_cap(world, member, rng))
        else:
            weight = rng.choice([1, 1, 2])
            _write(world, member, "weight", weight, by_tree=rng.random() < 0.5)
            printed.append(f"{member} weight {weight}")
    return ", ".join(printed)


def _change_cap(world: World, member: Member, rng: Random) -> str:
    new = CAP_GIB * GIB * rng.randint(2, 8) // 8
    # Between the old cap and the new one, whatever the order of looking and changing.
    member.allowance = max(CAP_GIB * GIB, new, member.allowance or 0)
    _write(world, member, "memsize", new, by_tree=rng.random() < 0.5)
    return f"{member} memsize {new}"


def _write(world: World, member: Member, name: str, value: int, *, by_tree: bool) -> None:
    """Set it; a refusal for want of room is fine."""
    if by_tree and world.tree_is_there():
        node = world.tree / str(member.gpu) / member.id[:12] / name
        with contextlib.suppress(OSError):
            node.write_text(f"{value}\n")
    else:
        world.set(member.id, f"{name}={value}")


def rules(world: World, rng: Random) -> str:
    """A GPU's policy and ratio, and a container's priority, for a while."""
    gpu, policy = str(rng.randrange(GPUS)), rng.randrange(6)
    member = pick(world, rng)
    world.set(gpu, f"policy={policy}", f"prio_ratio={rng.randint(50, 90)}")
    world.set(member.id, "highprio=1")
    before = computed(world)
    time.sleep(rng.uniform(0.2, 1.5) + 0.5)
    assert computed(world) > before, f"nobody computes under policy {policy}"
    for target, *values in ((member.id, "highprio=0"), (gpu, "policy=6", "prio_ratio=80")):
        done = world.set(target, *values)
        assert done.returncode == 0, done.stderr
    return f"GPU {gpu} policy {policy}"


def break_tool(world: World, rng: Random) -> str:
    """``cgpu set`` is killed before it has its answer, or the server while it does it."""
    member, after = pick(world, rng), rng.uniform(0, 0.5)
    server = rng.random() < 0.4
    member.allowance = max(CAP_GIB * GIB, member.allowance or 0)
    words = world.tool("set", member.id, f"memsize={CAP_GIB * GIB * rng.randint(4, 8) // 8}")
    tool = world.begin([*words], member)
    time.sleep(after)
    if server:
        kill([world.server()])
    else:
        kill(p.pid for p in world.inside.processes() if "set" in p.words)
    world.wait(tool)
    wake(world)
    return f"{member}, {'server' if server else 'tool'} killed after {after * 1000:.0f} ms"


def lose_tree(world: World, rng: Random) -> str:
    """The server goes while somebody reads the control tree and has files of it open."""
    wait_until(world.tree_is_there, "the control tree")
    member = pick(world, rng)
    path = f"{TREE}/{member.gpu}/{member.id[:12]}/meminfo"
    reader = world.enclosure.start(
        "sh", "-c", f"exec 3<{path}; while :; do cat {path}; done",
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    time.sleep(rng.uniform(0, 0.3))
    if rng.random() < 0.5:
        kill([world.server()])
    else:
        send([world.server()], signal.SIGTERM)
    time.sleep(rng.uniform(0, 0.5))
    wake(world)
    wait_until(world.tree_is_there, "the control tree again")
    kill(p.pid for p in world.inside.processes() if any(path in w for w in p.words))
    world.wait(reader)
    return str(member)
