"""How long root's commands and the audit take while users and containers try to hold them up."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lab.machine import hostile_users
from lab.machine.audited import until
from lab.machine.hostile_files import MANY, Hostile
from lab.worlds.audit import Audited
from lab.worlds.cgpu_run import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COMMANDS, AUDITS = 10, 3  # of each, beside each attack
MOUNTS, MAPPINGS, CLIENTS = 20_000, 65_000, 30
BARS_S = {"start": 1.0, "cgpu-smi": 1.0, "audit": 5.0}
_LEFT = "sleep 600 >&- 2>&- <&- & echo $!"  # what keeps a session that has ended


class Times(NamedTuple):
    """The times of one kind of work during one attack, in seconds."""

    median_s: float
    worst_s: float

    def __str__(self) -> str:
        """Return the median, and the worst in brackets."""
        return f"{self.median_s:.2f} ({self.worst_s:.2f})"


class Node:
    """A node with root's server, which audits; a user; and a session that must not be disturbed."""

    def __init__(self) -> None:
        self.root = Audited()
        self.server = self.root.serve('action = "kill"', "--metrics", "127.0.0.1:0")
        self.user = World(root=False, node_state=self.root.state)
        self.user.driver = self.root.driver
        self.library = str(self.root.driver / "libcuda.so.1")
        self._honest = self.root.program()
        self._honest.ask("take 500")
        (self._cap,) = (page.cap_bytes for page in self.root.pages())
        (self._id,) = self.root.sessions()

    def close(self) -> None:
        """End the node's server and sessions."""
        self.root.close()

    def check(self) -> None:
        """Refuse if an attack did anything to the honest session."""
        (seen,) = (each for each in self.root.smi()["containers"] if each["id"] == self._id)
        if seen["gpus"][0]["cap_bytes"] != self._cap or self._honest.ask("free") < 0:
            raise RuntimeError("an attack has changed another session")

    @contextlib.contextmanager
    def by_user(self, *words: str) -> Iterator[int]:
        """Start a hostile process of the user's; return the number that it prints."""
        command = [sys.executable, hostile_users.__file__, *words]
        environment = self.user.environment()
        pipe = subprocess.PIPE
        with subprocess.Popen(self.user.as_user(command), stdout=pipe, env=environment) as process:
            try:
                assert process.stdout is not None
                yield int(process.stdout.readline())
            finally:
                process.kill()

    @contextlib.contextmanager
    def ended_session(self) -> Iterator[None]:
        """Make a session of the user's that has left a process; only a pass over all finds it."""
        done = self.user.run("--mem", "1/15", "--", "sh", "-c", _LEFT)
        try:
            yield
        finally:
            subprocess.run(["kill", "-KILL", done.stdout.strip()], check=True)

    @contextlib.contextmanager
    def container(self) -> Iterator[Path]:
        """Start another session; return its directory."""
        before = {*self.root.sessions()}
        with self.root.start("--mem", "1/15", "--", "cat") as process:
            until(lambda: {*self.root.sessions()} - before, "it is admitted")
            (name,) = {each.lstrip(".") for each in {*self.root.sessions()} - before}
            directory = self.root.state / "containers" / name
            until((directory / "record.json").exists, "it runs")
            yield directory
            process.kill()

    def folder(self, name: str) -> str:
        """Make a folder that everybody may write."""
        path = self.user.folder / name
        path.mkdir(exist_ok=True)
        path.chmod(0o777)
        return str(path)


@contextlib.contextmanager
def _nothing(_: Node) -> Iterator[None]:
    yield


@contextlib.contextmanager
def _connections(node: Node) -> Iterator[None]:
    words = "connections", "/run/cgpu/cgpud.sock"
    with node.by_user(*words), node.by_user(*words):
        yield


@contextlib.contextmanager
def _mounts(node: Node) -> Iterator[None]:
    words = "mounts", node.folder("mounts"), str(MOUNTS), node.library
    with node.ended_session(), node.by_user(*words) as count:
        if count < MOUNTS:
            raise RuntimeError(f"the kernel allowed {count} mounts: see sysctl fs.mount-max")
        yield


@contextlib.contextmanager
def _mappings(node: Node) -> Iterator[None]:
    words = "mappings", node.folder("mappings"), str(MAPPINGS), node.library
    with node.by_user(*words):
        yield


@contextlib.contextmanager
def _locks(node: Node) -> Iterator[None]:
    with node.container() as directory, Hostile("locks", directory / "ledger", str(MANY)):
        yield


@contextlib.contextmanager
def _read_locks(node: Node) -> Iterator[None]:
    with node.container() as directory, Hostile("read-locks", directory / "limits", str(MANY)):
        yield


@contextlib.contextmanager
def _growth(node: Node) -> Iterator[None]:
    command = [sys.executable, hostile_users.__file__, "growth"]
    with node.container() as directory:
        words = [*command, str(directory / "ledger")]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                process.stdout.readline()
                yield
            finally:
                process.kill()


@contextlib.contextmanager
def _clients(node: Node) -> Iterator[None]:
    (address,) = re.findall(r"metrics_served address=(\S+)", node.root.logged())
    host, _, port = address.rpartition(":")
    ended = threading.Event()

    def send() -> None:
        ends: list[socket.socket] = []
        while not ended.wait(0.05):
            ends.append(socket.create_connection((host, int(port))))
            for end in ends[-CLIENTS:]:
                with contextlib.suppress(OSError):  # it was sent away
                    end.send(b"G")
            if len(ends) > CLIENTS:
                ends.pop(0).close()
        for end in ends:
            end.close()

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


ATTACKS: dict[str, Callable[[Node], contextlib.AbstractContextManager[None]]] = {
    "none": _nothing,
    "two processes of a user that never stop connecting and asking": _connections,
    f"{MOUNTS:,} stacked mounts of a user, and an ended session": _mounts,
    f"{MAPPINGS:,} mappings with paths of 4 KB": _mappings,
    f"{MANY:,} locks on a ledger with all slots taken": _locks,
    f"{MANY:,} read locks on limits": _read_locks,
    "a ledger made large again and again": _growth,
    f"{CLIENTS} slow clients of the metrics": _clients,
}


def _times(run: Callable[[], float | None], count: int) -> Times:
    """Return how long ``run`` takes, from its start or from the time that it returns."""
    found = []
    for _ in range(count):
        begun = time.monotonic()
        begun = run() or begun
        found.append(time.monotonic() - begun)
    return Times(round(statistics.median(found), 3), round(max(found), 3))


def _start(node: Node) -> None:
    done = node.root.run("--mem", "64MiB", "--", "true")
    if done.returncode != 0:
        raise RuntimeError(done.stderr)


def _audit(node: Node) -> float:
    """Wait until a process that took memory past cgpu, in a session of its own, is ended."""
    program = node.root.program("--mem", "2/15")
    try:
        pid = program.ask("past 1000")
        begun = time.monotonic()
        until(lambda: f"pid={pid} " in node.root.logged("bypass_ended"), "it is ended")
    finally:
        program.close()
    return begun


def _beside(node: Node) -> dict[str, Times]:
    found = {
        "start": _times(lambda: _start(node), COMMANDS),
        "cgpu-smi": _times(lambda: json.dumps(node.root.smi()) and None, COMMANDS),
        "audit": _times(lambda: _audit(node), AUDITS),
    }
    node.check()
    return found


def measure() -> dict[str, Any]:
    """Return median and worst, in seconds, by attack and kind of work."""
    node = Node()
    try:
        found = {}
        for name, attack in ATTACKS.items():
            with attack(node):
                found[name] = {what: each._asdict() for what, each in _beside(node).items()}
        return {"attacks": found}
    finally:
        node.close()


def table(figures: dict[str, Any]) -> str:
    """Return a Markdown table: median and worst."""
    words = [f"| attack | {' | '.join(BARS_S)} |", f"|---{'|---' * len(BARS_S)}|"]
    for name, times in figures["attacks"].items():
        cells = (str(Times(**times[what])) for what in BARS_S)
        words.append(f"| {name} | {' | '.join(cells)} |")
    bars = (f"<= {bar:g}" for bar in BARS_S.values())
    return "\n".join([*words, f"| bar, in seconds | {' | '.join(bars)} |"])


def is_met(figures: dict[str, Any]) -> bool:
    """Whether the worst of all times is within its bar."""
    return all(
        times[what]["worst_s"] <= bar
        for times in figures["attacks"].values()
        for what, bar in BARS_S.items()
    )
