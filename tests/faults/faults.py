"""What is done to the node: a table of faults, each of which leaves it in need of nothing but time.

A fault draws what it needs from the generator that it is given and from nothing else, so that the
same seed gives the same faults in the same order.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from faults.processes import is_stopped, kill, send
from faults.world import CAP_GIB, CRUN, GIB, GPUS, RUNC, TREE, Member, World
from lab.containers.enclosure import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

HELD = ["/bin/busybox", "sleep", "1000"]
BRIEF = ["/bin/busybox", "true"]


def _any(world: World, rng: Random, *, sessions: bool = True) -> Member:
    return rng.choice([m for m in world.members if sessions or not m.is_session])


def _wake(world: World) -> None:
    """Whoever comes next starts a server where there is none."""
    probe = world.new(0, RUNC)
    done = world.create(probe, BRIEF)
    assert done.returncode == 0, world.output(probe)
    world.delete(probe)


# Programs and containers.


def kill_programs(world: World, rng: Random) -> str:
    """Some programs of containers, at whatever they do."""
    victims = [_any(world, rng) for _ in range(rng.randint(1, 6))]
    found = world.by_member()
    for victim in victims:
        kill([rng.choice([p.pid for p in found[victim.name] if p.words[1:2] != ("keep",)] or [0])])
    return ", ".join(map(str, victims))


def stop_programs(world: World, rng: Random) -> str:
    """All programs of a container stand still for a while; the others go on."""
    victim, seconds = _any(world, rng), rng.uniform(0.3, 3)
    others = [m for m in world.members if m.gpu == victim.gpu and m is not victim]
    pids = [p.pid for p in world.programs(victim)]
    send(pids, signal.SIGSTOP)
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
    victim, engine = _any(world, rng, sessions=False), rng.random() < 0.6
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
    victim, seconds = _any(world, rng, sessions=False), rng.uniform(0.2, 1)
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
    victim = _any(world, rng, sessions=False)
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
    victim, after = _any(world, rng, sessions=False), rng.uniform(0, 0.1)
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
    victims = {_any(world, rng) for _ in range(rng.randint(1, 4))}
    for victim in victims:
        world.remove(victim)
    return f"{len(victims)}"


# The server.


def kill_server(world: World, rng: Random) -> str:
    """By SIGKILL; everyone goes on meanwhile, and the next container starts another one."""
    kill([world.server()])
    seconds = rng.uniform(0, 1.5)
    before = _computed(world)
    time.sleep(seconds + 0.5)
    assert _computed(world) > before, "nobody computed without a server"
    _wake(world)
    return f"{seconds:.1f} s without"


def _computed(world: World) -> int:
    """GPU time, in ns, of the programs that live, by the GPUs' own account."""
    return sum(p.busy_ns for gpu in range(GPUS) for p in world.books(gpu))


def stop_server(world: World, rng: Random) -> str:
    """It stands still; containers start without it, unless it has the lock."""
    pid, seconds = world.server(), rng.uniform(0.3, 3)
    probe = world.new(rng.randrange(GPUS), RUNC)
    command = world.run_command(probe, world.write_bundle(probe, HELD))
    send([pid], signal.SIGSTOP)
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
        _wake(world)
    world.set(_any(world, rng).id, f"weight={rng.choice([1, 2])}")


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
    _wake(world)
    return f"{spare} KiB spare{', it ended' if ended else ''}"


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
        world.set(_any(world, rng).id, "weight=1")
        replace_containers(world, rng)
        if kills:
            kill([world.server()])
            time.sleep(0.3)
    if kills:
        _wake(world)
    return how + (", and the server killed" if kills else "")


# Changes.


def change(world: World, rng: Random) -> str:
    """Caps and weights, by ``cgpu set`` and by the tree, while everyone allocates."""
    printed = []
    for _ in range(rng.randint(1, 4)):
        member = _any(world, rng)
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
    member = _any(world, rng)
    world.set(gpu, f"policy={policy}", f"prio_ratio={rng.randint(50, 90)}")
    world.set(member.id, "highprio=1")
    before = _computed(world)
    time.sleep(rng.uniform(0.2, 1.5) + 0.5)
    assert _computed(world) > before, f"nobody computes under policy {policy}"
    for target, *values in ((member.id, "highprio=0"), (gpu, "policy=6", "prio_ratio=80")):
        done = world.set(target, *values)
        assert done.returncode == 0, done.stderr
    return f"GPU {gpu} policy {policy}"


def break_tool(world: World, rng: Random) -> str:
    """``cgpu set`` is killed before it has its answer, or the server while it does it."""
    member, after = _any(world, rng), rng.uniform(0, 0.5)
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
    _wake(world)
    return f"{member}, {'server' if server else 'tool'} killed after {after * 1000:.0f} ms"


def lose_tree(world: World, rng: Random) -> str:
    """The server goes while somebody reads the control tree and has files of it open."""
    wait_until(world.tree_is_there, "the control tree")
    member = _any(world, rng)
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
    _wake(world)
    wait_until(world.tree_is_there, "the control tree again")
    kill(p.pid for p in world.inside.processes() if any(path in w for w in p.words))
    world.wait(reader)
    return str(member)


FAULTS: tuple[Callable[[World, Random], str], ...] = (
    kill_programs,
    stop_programs,
    kill_init,
    kill_session,
    run_in_container,
    ruin_ledger,
    break_creation,
    break_removal,
    storm,
    replace_containers,
    kill_server,
    stop_server,
    replace_server,
    starve_server,
    no_descriptors,
    no_memory,
    full_state,
    change,
    rules,
    break_tool,
    lose_tree,
)
