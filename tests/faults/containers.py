"""Faults of programs and of containers."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from faults.member import Member
from faults.processes import kill
from faults.world import GPUS, World
from lab.containers.enclosure import wait_until
from lab.driver.stopping import send, stop
from lab.machine.node import CRUN, RUNC

if TYPE_CHECKING:
    from random import Random

HELD = ["/bin/busybox", "sleep", "1000"]
BRIEF = ["/bin/busybox", "true"]


def pick(world: World, rng: Random, *, sessions: bool = True) -> Member:
    """A container, or a session too."""
    return rng.choice([m for m in world.members if sessions or not m.is_session])


def wake(world: World) -> None:
    """Whoever comes next starts a server where there is none."""
    probe = world.new(0, RUNC)
    done = world.create(probe, BRIEF)
    assert done.returncode == 0, world.output(probe)
    world.delete(probe)


# Programs and containers.


def kill_programs(world: World, rng: Random) -> str:
    """Some programs of containers, at whatever they do."""
    victims = [pick(world, rng) for _ in range(rng.randint(1, 6))]
    found = world.by_member()
    for victim in victims:
        kill([rng.choice([p.pid for p in found[victim.name] if p.words[1:2] != ("keep",)] or [0])])
    return ", ".join(map(str, victims))


def stop_programs(world: World, rng: Random) -> str:
    """All programs of a container stand still for a while; the others go on."""
    victim, seconds = pick(world, rng), rng.uniform(0.3, 3)
    others = [m for m in world.members if m.gpu == victim.gpu and m is not victim]
    pids = [p.pid for p in world.programs(victim)]
    stop(world.node.driver, *pids)
    try:
        time.sleep(seconds / 2)
        before = sum(world.page(m).charged_ns for m in others)
        time.sleep(seconds / 2 + 0.5)
        had = sum(world.page(m).charged_ns for m in others) - before
    finally:
        send(pids, signal.SIGCONT)
    assert had > 0, f"nobody computed while {victim} stood still"
    return f"{victim} for {seconds:.1f} s"


def kill_init(world: World, rng: Random) -> str:
    """A container's first process; its engine then cleans up, or never does."""
    victim, engine = pick(world, rng, sessions=False), rng.random() < 0.6
    kill([world.init(victim)])
    world.members.remove(victim)
    if engine:
        world.delete(victim)
    else:
        _forget(world, victim)
    return f"{victim}, {'then deleted' if engine else 'and no poststop'}"


def _forget(world: World, victim: Member) -> None:
    """What is left of it when the machine's runtime is removed: nobody calls a hook."""
    wait_until(lambda: not world.programs(victim), f"{victim} has ended")
    name = Path(victim.runtime).name
    inside = Path(f"/proc/{world.enclosure.pid}/root")
    shutil.rmtree(inside / "run" / name / victim.name, ignore_errors=True)


def kill_session(world: World, rng: Random) -> str:
    """A session's first process, its keeper, or both."""
    victim = rng.choice([m for m in world.members if m.is_session])
    which = rng.choice(["program", "keeper", "both"])
    keepers = [
        p.pid
        for p in world.inside.processes()
        if "cgpu_cli.run" in p.words and p.tag == victim.name
    ]
    if which != "program":
        kill(keepers)
    if which != "keeper":
        world.remove(victim)
    return f"{which} of {victim}"


def run_in_container(world: World, rng: Random) -> str:
    """Another program by ``exec``, killed by whoever started it."""
    victim, seconds = pick(world, rng, sessions=False), rng.uniform(0.2, 1)
    words = [*world.node.command(victim.runtime), "exec", victim.name]
    program = ["/bin/restless", "wild", str(rng.randrange(1000))]
    tool = world.begin([*words, *program], victim)
    time.sleep(seconds)
    known = {p.pid for p in world.programs(victim) if p.words[1:2] == ("wild",)}
    kill(known)
    world.wait(tool)
    return f"{victim}, {len(known)} programs after {seconds:.1f} s"


def ruin_ledger(world: World, rng: Random) -> str:
    """A hostile container writes anything into its ledger; then it goes."""
    victim = pick(world, rng, sessions=False)
    victim.allowance = None
    size = rng.choice([64, 4096, 65536])
    script = f"head -c {size} /dev/urandom > /dev/cgpu/ledger"
    if rng.random() < 0.5:
        script = f"dd if=/dev/urandom of=/dev/cgpu/ledger bs={size} count=8 conv=notrunc"
    words = [*world.node.command(victim.runtime), "exec", victim.name]
    world.enclosure.run(*words, "/bin/busybox", "sh", "-c", script, check=False)
    time.sleep(rng.uniform(0.3, 1.5))
    assert world.server(), "the server ended"
    world.remove(victim)
    return f"{victim}, {script.split()[0]} {size}"


# Coming and going.


def _descendants(world: World, mark: str) -> list[int]:
    """The processes that a command line or its children name ``mark`` in, youngest last."""
    return sorted(p.pid for p in world.inside.processes() if any(mark in w for w in p.words))


def break_creation(world: World, rng: Random) -> str:
    """Whoever makes a container is killed or stopped: launcher, editor, runc, at any moment."""
    victim = world.new(rng.randrange(GPUS), rng.choice([RUNC, CRUN]))
    number, after = rng.choice([signal.SIGKILL, signal.SIGSTOP]), rng.uniform(0, 0.25)
    which = rng.choice(["first", "last", "all"])
    bundle = world.write_bundle(victim, HELD)
    maker = world.begin(world.run_command(victim, bundle), victim)
    time.sleep(after)
    found = _descendants(world, victim.name)
    chosen = {"first": found[:1], "last": found[-1:], "all": found}[which]
    send(chosen, number)
    if number == signal.SIGSTOP:
        time.sleep(0.5)
        send(chosen, signal.SIGCONT)
    try:
        world.wait(maker, 20)
    except subprocess.TimeoutExpired:
        kill(_descendants(world, victim.name))
        world.wait(maker)
    kill(_descendants(world, victim.name))
    world.delete(victim)
    return f"{number.name} to {which} ({len(chosen)}) of {victim} after {after * 1000:.0f} ms"


def break_removal(world: World, rng: Random) -> str:
    """Whoever removes a container is killed, hook or runtime; then it is removed again."""
    victim, after = pick(world, rng, sessions=False), rng.uniform(0, 0.1)
    words = [*world.node.command(victim.runtime), "delete", "--force", victim.name]
    world.members.remove(victim)
    remover = world.begin(words, victim)
    time.sleep(after)
    kill(_descendants(world, victim.name))
    world.wait(remover)
    world.delete(victim)
    _forget(world, victim)
    return f"{victim} after {after * 1000:.0f} ms"


def storm(world: World, rng: Random) -> str:
    """Many come and go at once, twice as many as there is room for."""
    count = rng.randint(4, 10)
    new = [world.new(rng.randrange(GPUS), rng.choice([RUNC, CRUN])) for _ in range(count)]
    makers = [world.begin(world.run_command(m, world.write_bundle(m, HELD)), m) for m in new]
    codes = [world.wait(maker) for maker in makers]
    removers = [
        world.begin([*world.node.command(m.runtime), "delete", "--force", m.name], m) for m in new
    ]
    for remover in removers:
        world.wait(remover)
    refused = [m for m, code in zip(new, codes, strict=True) if code]
    for member in refused:
        assert "cgpu: " in world.output(member), f"{member}: {world.output(member)}"
    return f"{count}, {len(refused)} refused"


def replace_containers(world: World, rng: Random) -> str:
    """Some end in order, and others come in their places."""
    victims = {pick(world, rng) for _ in range(rng.randint(1, 4))}
    for victim in victims:
        world.remove(victim)
    return f"{len(victims)}"
