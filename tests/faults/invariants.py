"""What holds whatever fails: at every moment the caps, and soon after each fault the rest."""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import cgpu_native
from cgpu_node.client import CgpuError
from cgpu_node.shares.record import GUEST
from faults.member import CAP_GIB
from faults.processes import described
from faults.world import GPUS, MEMORY_GIB, PATIENCE, TREE
from lab.machine.node import RUNC
from lab.shares.compute import favour

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from faults.member import Member
    from faults.world import World

    Times = dict[tuple[str, int], int]  # ns by container, and process if they are of processes

FILES = {"limits", "ledger", "record.json"}
STATE_FILES = {"lib", "lock", "node.json", "cgpud.sock", "cgpud.lock", "containers"}
MAY_BE = {"cgpud-root.sock", "cgpud.log", "cgpud.log.1", "rules.json", "node.lock"}
FRESH_NS = 1_000_000_000
WINDOW = 3.0  # seconds over which shares are compared
LEAST, MOST = 0.4, 2.0  # of a fair share: none starves, none runs unmetered
CODE = 2 << 20  # what a module takes of the simulated GPU
LARGEST_ESTIMATE = 65 << 20  # what is charged for it at most (docs/decisions/0214)
PROGRAMS = 3  # with code in a container at once: their charge may be too small
NAMESPACE = re.compile(r"(mnt|pid|user|net|ipc|uts|cgroup|time):\[\d+\]")
DESCRIPTORS = 24  # of a server without containers, at most


class Watch:
    """Compares what every container holds with its cap, without a pause, in a thread."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ended = threading.Event()
        self.found: list[str] = []
        self.looks = 0
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._ended.wait(0.1):
                self._look()
        except Exception as error:  # noqa: BLE001 (who looks no more finds nothing more)
            self.found.append(f"caps are not looked at any more: {error!r}")

    def _look(self) -> None:
        allowed = {m.name: m.allowance for m in [*self._world.members]}
        for name, held in self._world.held().items():
            most = allowed.get(name)
            if most is not None and held > most + PROGRAMS * CODE:
                self.found.append(f"{name} held {held} bytes: its cap is {most}")
        self.looks += 1

    def close(self) -> None:
        """Look no more."""
        self._ended.set()
        self._thread.join()


def _accounts(world: World) -> Iterator[str]:
    """The ledger is what the GPU says, to the byte, and nobody else holds anything."""
    inner = {p.pid: p for p in world.inside.processes()}
    there: dict[str, dict[int, tuple[int, int]]] = {m.name: {} for m in world.members}
    for gpu in range(GPUS):
        for book in world.books(gpu):
            process = inner.get(book.pid)
            if process is None or book.tag not in there:
                yield (
                    f"process {book.pid} of {book.tag} ({described(book.pid)})"
                    f" holds {book.used_bytes} bytes"
                )
                continue
            slack = 0 if process.words[1:2] == ("wild",) else LARGEST_ESTIMATE
            there[book.tag][process.inner] = book.used_bytes, slack
    for member in world.members:
        if member.allowance is not None:
            yield from _compared(member, world.charged(member), there[member.name])


def _compared(
    member: Member, charged: dict[int, int], there: dict[int, tuple[int, int]]
) -> Iterator[str]:
    for pid in charged.keys() | there.keys():
        own, (held, slack) = charged.get(pid, 0), there.get(pid, (0, 0))
        if not held - (slack and CODE) <= own <= held + slack:
            yield f"{member}: process {pid} has {own} bytes in its ledger, {held} on the GPU"


def _registry(world: World) -> Iterator[str]:
    """Who lives has a directory with what belongs there, and nothing else is there."""
    names, living = set(world.names()), {m.id for m in world.members}
    for name in names ^ living:
        yield f"{name}: {'is not there' if name in living else 'is left'} in the state directory"
    for member in world.members:
        belongs = FILES | ({GUEST} if member.runtime == "user" else set())
        if member.id in names and (found := set(os.listdir(world.folder(member)))) != belongs:
            yield f"{member}: {sorted(found)} in its directory"
    there = set(os.listdir(world.state)) - MAY_BE
    if there != STATE_FILES:
        yield f"state directory: {sorted(there ^ STATE_FILES)} left or missing"


def _server(world: World) -> Iterator[str]:
    """One server, which knows all and gives signs of life, and keeps nothing of the dead."""
    found, pid = world.servers(), world.server()
    if found != [pid] or not pid:
        yield f"servers {found}, of which {pid} serves"
        return
    now = time.monotonic_ns()
    for member in world.members:
        age = now - world.page(member).heartbeat_ns
        if age > FRESH_NS and member.allowance is not None:
            yield f"{member}: no arbiter for {age / 1e9:.1f} s"
    maps = Path(f"/proc/{pid}/maps").read_text()
    for line in re.findall(r"/containers/\S+ \(deleted\)", maps):
        yield f"the server has {line} mapped"
    links = _descriptors(pid)
    for link in links:
        if "/containers/" in link and "(deleted)" in link:
            yield f"the server has {link} open"
        if NAMESPACE.fullmatch(link):
            yield f"the server has the namespace {link} open"
    most = DESCRIPTORS + 4 * len(world.members)
    if len(links) > most:
        yield f"the server has {len(links)} descriptors open: expected at most {most}"


def _descriptors(pid: int) -> list[str]:
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
        except OSError:  # noqa: PERF203 (closed meanwhile)
            continue
    return found


def _processes(world: World) -> Iterator[str]:
    """Nobody is left, and no zombie."""
    everyone = world.inside.processes()
    programs = world.by_member()
    own = {p.pid for m in world.members for p in programs.get(m.name, [])}
    servers = set(world.servers())
    probes = [p.pid for p in everyone if p.parent in servers and "holdings" in p.words]
    own.update(probes[:1])
    keepers = [p for p in everyone if "cgpu_cli.run" in p.words]
    sessions = sum(m.is_session for m in world.members)
    for process in everyone:
        if process.is_zombie:
            of = " ".join(word for p in everyone if p.pid == process.parent for word in p.words)
            yield f"zombie {process.pid} of {process.parent}: {of[:200]}"
        elif not (process.pid in own or process.pid in servers or process in keepers):
            yield f"process {process.pid} of {process.parent}: {' '.join(process.words)[:200]}"
    if len(keepers) > sessions:
        yield f"{len(keepers)} keepers of {sessions} sessions"


def _mounts(world: World) -> Iterator[str]:
    now, before = world.mounts(), world.first_mounts
    if now != before:
        yield f"mounts: {sorted(set(now) ^ set(before)) or 'twice the same'}"
    trees = world.enclosure.mounts().count(TREE)
    if trees != 1:
        yield f"{trees} control trees are mounted"


def _at_work(world: World) -> Iterator[str]:
    """Each has both of its programs on the GPU, and none has met an error."""
    programs = world.by_member()
    for member in world.members:
        kinds = {p.words[1] for p in programs.get(member.name, []) if len(p.words) > 1}
        if not {"keep", "steady", "wild"} <= kinds and member.allowance is not None:
            yield f"{member}: only {sorted(kinds)} run"
        for line in world.output(member).splitlines():
            if line.startswith("restless: ") and member.allowance is not None:
                yield f"{member} said {line!r}"


CHECKS: tuple[Callable[[World], Iterator[str]], ...] = (
    _accounts,
    _registry,
    _server,
    _processes,
    _mounts,
    _at_work,
)


def complaints(world: World) -> list[str]:
    """What does not hold at this moment."""
    found = []
    with world.inside.one_look():
        for check in CHECKS:
            try:
                found += check(world)
            except (OSError, cgpu_native.NativeError, CgpuError) as error:  # noqa: PERF203 (each for itself)
                found.append(f"{check.__name__}: {error}")
    return found


def wait(world: World, seconds: float = PATIENCE) -> None:
    """Wait until all of it holds, while nobody takes or gives back memory.

    Raises:
        AssertionError: what still does not hold after ``seconds``.
    """
    world.hold(still=True)
    deadline = time.monotonic() + seconds
    while found := complaints(world):
        assert time.monotonic() < deadline, "\n".join([f"after {seconds:g} s still:", *found])
        time.sleep(0.2)
        world.resume()
    _note_allowances(world)
    world.hold(still=False)


def _note_allowances(world: World) -> None:
    """What was held when the cap was lowered may be kept; more may not be taken."""
    held = world.held()
    for member in world.members:
        cap = world.page(member).cap_bytes
        if member.allowance is not None:  # else its ledger is ruined
            member.allowance = max(cap, min(held.get(member.name, 0), member.allowance))


def admission(world: World, number: int) -> None:
    """There is room for one more, and none for more than there is.

    Raises:
        AssertionError: one of the two is not so.
    """
    gpu = number % GPUS
    probe = world.new(gpu, RUNC)
    done = world.create(probe, ["/bin/busybox", "true"])
    assert done.returncode == 0, f"no room for {probe}: {world.output(probe)}"
    world.delete(probe)
    large = world.new(gpu, RUNC)
    done = world.create(large, ["/bin/busybox", "true"], cap=MEMORY_GIB - CAP_GIB)
    printed = world.output(large)
    assert done.returncode != 0, f"{large} was let in beside {len(world.members)} others"
    assert "ALIYUN_COM_GPU_MEM_CONTAINER" in printed, (
        f"{large} was refused for another reason: {printed}"
    )


def shares(world: World) -> None:
    """Everyone computes according to its weight again, by the GPU's account and the arbiter's.

    Raises:
        AssertionError: somebody starves or runs unmetered.
    """
    for attempt in range(4):  # a program may die within the window
        found = _shares(world)
        if not found:
            return
        time.sleep(0.5 * attempt)
    raise AssertionError("\n".join(found))


def _shares(world: World) -> list[str]:
    favour([*world.servers(), *(p.pid for found in world.by_member().values() for p in found)])
    charged, busy = _charged(world), _busy(world)
    time.sleep(WINDOW)
    found = _compare_shares(world, "charged", _since(charged, _charged(world)))
    return found + _compare_shares(world, "computed", _since(busy, _busy(world)))


def _charged(world: World) -> Times:
    """What arbiters charged each, in ns."""
    return {(m.name, 0): world.page(m).charged_ns for m in world.members}


def _busy(world: World) -> Times:
    """What the GPUs gave to each living process, in ns, by their own account."""
    return {(b.tag, b.pid): b.busy_ns for gpu in range(GPUS) for b in world.books(gpu)}


def _since(before: Times, after: Times) -> dict[str, int]:
    """By container; what processes had that have ended meanwhile is not known."""
    had: dict[str, int] = {}
    for (name, pid), ns in after.items():
        had[name] = had.get(name, 0) + ns - before.get((name, pid), 0)
    return had


def _compare_shares(world: World, how: str, had: dict[str, int]) -> list[str]:
    found = []
    for gpu in range(GPUS):
        members = [m for m in world.members if m.gpu == gpu]
        weights = {m.name: _weight(world, m) for m in members}
        total, weight = sum(had.get(m.name, 0) for m in members), sum(weights.values())
        if total < WINDOW * 0.3e9:
            found.append(f"GPU {gpu}: {total / 1e9:.2f} s were {how} in {WINDOW} s")
        for member in members:
            part = had.get(member.name, 0) * weight / (weights[member.name] * max(total, 1))
            if not LEAST <= part <= MOST:
                found.append(f"{member}: {part:.2f} of its share {how}")
    return found


def _weight(world: World, member: Member) -> int:
    return cgpu_native.read_limits(world.folder(member) / "limits").weight
