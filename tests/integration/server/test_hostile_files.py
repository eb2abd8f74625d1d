"""What containers do to their own files costs others nothing, and the host a bounded time (REL-7).

Nothing is timed: questions about locks are counted, opened files are listed, and an answer that
came while a lease was still held has not waited for it.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from test_server_metrics import logged, scrape, serve

import cgpu_native
from cgpu_env import CgpuError
from cgpu_node.facts.driver import PROXIED
from cgpu_node.settings.rules import Defaults
from cgpu_node.view import marks, processes, usage
from cgpu_server.audit import auditor
from cgpu_server.audit.driver_probe import Reading
from cgpu_server.state.container_warnings import ContainerWarnings
from cgpu_shim import library as proxy
from lab.driver.attached import AttachedLedger
from lab.driver.cuda_base import PROGRAMS, compile_c
from lab.machine.hostile_files import MANY, SLOTS, Hostile
from lab.machine.servers import StandIn
from lab.shares import changing
from lab.worlds.audit import Audited
from lab.worlds.cgpu_run import World as Machine
from lab.worlds.server import MIB, NODE, UUIDS, World, is_arbitrated, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

FEW = 200  # questions: a sixth of what a full ledger would cost, and ten times what they do


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def shown(world: World, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What cgpu-smi prints of each container's GPU."""
    monkeypatch.setattr(usage, "load_node", lambda *_, **__: NODE)
    answer = usage.read_usage(str(world.state), None).as_json()
    return {each["id"]: each["gpus"][0] for each in answer["containers"]}


def marked(world: World) -> dict[str, Any]:
    """The marks that ``cgpu get`` shows."""
    return {c["id"]: c["mark"] for c in world.ask({"request": "status"})["containers"]}


def test_locks_without_end_are_gone_through_a_few_times(world: World, stack: ExitStack) -> None:
    path = world.admit("a") / "ledger"
    stack.enter_context(Hostile("locks", path, MANY))
    with cgpu_native.Ledger.observe(path) as ledger:
        look = ledger.look()
        assert 0 < look.asked < FEW
        assert not look.is_certain
        assert len(look.list_processes(0)) > SLOTS - FEW, "who was not asked for counts as living"
        assert ledger.look().asked == 0
    with cgpu_native.Ledger.observe(path) as later:
        assert later.look().asked == 0, "what one look has found out, the next one knows"
    assert cgpu_native.is_costly(path)


def test_a_container_with_locks_without_end_is_marked_and_no_other_one(
    world: World, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile, honest = world.admit("a"), world.admit("b")
    stack.enter_context(Hostile("locks", hostile / "ledger", MANY))
    ledger = stack.enter_context(AttachedLedger.attach(honest / "ledger"))
    ledger.charge(0, MIB, MIB // 2)
    address = serve(world)
    found = scrape(address)
    assert found["cgpu_container_marked"] == {"a": 1}
    assert found["cgpu_container_memory_used_bytes"]["b"] == MIB // 2
    assert marked(world) == {"a": marks.LOCKS, "b": None}
    seen = shown(world, monkeypatch)
    assert (seen["a"]["mark"], seen["b"]["mark"]) == (marks.LOCKS, None)
    assert seen["b"]["used_bytes"] == MIB // 2
    line = logged(world.state.parent / "log", r"locks_without_end .*")
    assert "container=a" in line
    assert "do=" in line


def test_a_lease_on_its_files_holds_up_nobody_and_marks_the_container(
    world: World, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile, honest = world.admit("a"), world.admit("b")
    ours = stack.enter_context(Hostile("lease", hostile / "limits", hostile / "ledger"))
    address = serve(world)
    assert marked(world) == {"a": marks.LEASE, "b": None}
    assert scrape(address)["cgpu_container_marked"] == {"a": 1}
    seen = shown(world, monkeypatch)
    assert (seen["a"]["mark"], seen["b"]["mark"]) == (marks.LEASE, None)
    assert seen["a"]["cap_bytes"] == MIB
    wait_until(lambda: is_arbitrated(honest), "the other one is arbitrated")
    output = logged(world.state.parent / "log", r"container_not_taken_on .*")
    assert "a process holds a lease on it" in output
    assert ours.holds_leases(), "all of it has waited for the lease"


def test_a_lease_refuses_changes_of_its_own_container_only(world: World, stack: ExitStack) -> None:
    hostile = world.admit("a")
    world.admit("b")
    ours = stack.enter_context(Hostile("lease", hostile / "limits"))
    world.admit("c")  # who comes moves the parts of all
    changing.change_container(world.registry, "b", {"weight": 2}, Defaults())
    with pytest.raises(CgpuError, match=r"a: a process holds a lease on it .*: it cannot be chang"):
        changing.change_container(world.registry, "a", {"memsize": MIB}, Defaults())
    changing.change_gpus(world.registry, [NODE.gpus[0]], {"policy": 1}, Defaults())
    world.registry.remove("a")
    assert world.containers() == ["b", "c"]
    assert ours.holds_leases(), "all of it has waited for the lease"


def test_rel_6_a_lease_keeps_no_container_from_the_audit(
    world: World, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that takes memory past cgpu could first take a lease on its limits."""
    stack.enter_context(Hostile("lease", world.admit("a") / "limits"))
    (record,) = world.registry.list_records()
    reading = Reading(1000 * MIB, {os.getpid(): 1000 * MIB})
    nothing = lambda: None  # noqa: E731
    probe = SimpleNamespace(
        folder="/",
        read=lambda _: {UUIDS[0]: reading},
        lost=(),
        close=nothing,
        interrupt=nothing,
    )
    monkeypatch.setattr(auditor, "DriverProbe", lambda _: probe)
    config = SimpleNamespace(action="report", interval_seconds=0.05)
    ours = record._replace(kind="session")  # whose processes are known by who keeps it
    state: Any = SimpleNamespace(
        config=config,
        records=[ours],
        exclusive=(),
        inhabited_at=0.0,
        driver_dir="/",
        find_node=nothing,
    )
    looks = auditor.Audit(state)
    looks.start()
    try:
        wait_until(lambda: any(looks.last.bypasses.values()), "it is found")
    finally:
        looks.close()


@pytest.mark.parametrize("kind", [fcntl.F_RDLCK, fcntl.F_WRLCK])
def test_no_lease_is_to_be_had_on_the_limits_of_a_container_that_is_arbitrated(
    world: World, kind: int
) -> None:
    directory = world.admit("a")
    world.start()
    wait_until(lambda: is_arbitrated(directory), "it is arbitrated")
    fd = os.open(directory / "limits", os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.fcntl(fd, fcntl.F_SETLEASE, kind)
    os.close(fd)


def lease(path: Path) -> None:
    """Take a lease, and give it back."""
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    finally:
        os.close(fd)


def test_no_lease_is_to_be_had_on_a_library_while_there_are_containers() -> None:
    """REL-7: also if no audit holds the driver; whoever loads it would wait for 45 s."""
    machine = Audited()
    library = machine.driver / "libcuda.so.1"
    shared = [library, machine.driver / "libnvidia-ml.so.1", *map(Path, map(proxy, PROXIED))]
    try:
        server = machine.serve('action = "off"')
        lease(library)
        machine.start("--mem", "6/15", "--", "sleep", "60")
        folder = Path(f"/proc/{server.pid}/fd")

        def held() -> set[Path]:
            found = set()
            for fd in folder.iterdir():
                with suppress(FileNotFoundError):
                    found.add(fd.readlink())
            return found

        wait_until(lambda: {path.resolve() for path in shared} <= held(), "it has them open")
        with pytest.raises(BlockingIOError):
            lease(library)
    finally:
        machine.close()


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_what_is_no_regular_file_is_not_waited_for(world: World, kind: str) -> None:
    directory = world.admit("a")
    for name in ("ledger", "record.json", "limits"):
        path = directory / name
        path.rename(world.state / name)
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "link":
            path.symlink_to(world.state / name)
        else:
            path.mkdir()
        with pytest.raises((OSError, cgpu_native.NativeError)):
            os.close(cgpu_native.open_file(path))
        assert cgpu_native.read_head(path) is None
    assert world.registry.list_records() == []


def test_a_ledger_made_endless_is_not_read_and_marks_the_container(world: World) -> None:
    path = world.admit("a") / "ledger"
    os.truncate(path, 1 << 40)
    assert processes.read_ledger(world.registry.list_records()[0]).mark == marks.RUINED


def test_a_ledger_made_large_is_cut_back_and_works_again(world: World, stack: ExitStack) -> None:
    """REL-5: it would fill the file system, which other containers need, and the host."""
    path = world.admit("a") / "ledger"
    size = path.stat().st_size
    ledger = stack.enter_context(AttachedLedger.attach(path))
    ledger.charge(0, MIB, MIB // 2)
    os.truncate(path, 1 << 40)
    serve(world)
    wait_until(lambda: path.stat().st_size == size, "it is cut")
    assert "container=a" in logged(world.state.parent / "log", r"ledger_cut .*")
    (entry,) = world.registry.list_records()
    assert processes.read_ledger(entry).mark is None
    with cgpu_native.Ledger.observe(path) as seen:
        assert seen.read_used(0) == MIB // 2


def test_space_beyond_the_end_of_a_ledger_is_given_back() -> None:
    """REL-5: its size does not show it."""
    with TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder, "ledger")
        cgpu_native.create_ledger(folder, "ledger")
        before = path.stat()
        subprocess.run(["fallocate", "-n", "-o", "1M", "-l", "16M", path], check=True)
        assert path.stat().st_size == before.st_size
        assert path.stat().st_blocks > before.st_blocks
        assert cgpu_native.cut_ledger(path)
        assert path.stat().st_blocks == before.st_blocks
        assert not cgpu_native.cut_ledger(path)


def test_a_ledger_of_another_release_is_not_cut(world: World) -> None:
    directory = world.admit("a")
    with (directory / "limits").open("r+b") as limits:
        limits.seek(4)
        limits.write(bytes([99]))
    os.truncate(directory / "ledger", 1 << 20)
    ContainerWarnings().log(world.registry.list_records())
    assert (directory / "ledger").stat().st_size == 1 << 20


LEASE = """
import fcntl, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)  # by which the kernel asks for a lease
files = [open(path) for path in sys.argv[1:]]
for file in files:
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print(flush=True)
sys.stdin.read()
"""


def test_a_program_that_takes_leases_on_what_it_is_given_is_marked(stack: ExitStack) -> None:
    machine = Machine()
    machine.state.mkdir(mode=0o700)
    stand_in = StandIn(machine.state)  # no server, which would have opened them first
    files = [machine.state / name for name in ("limits", "ledger")]
    words = [str(word) for word in (sys.executable, "-c", LEASE, *files)]
    program = stack.enter_context(machine.start("--mem", "6/15", "--", *words))
    assert program.stdout is not None
    assert program.stdout.readline() == "\n"
    (container,) = machine.smi()["containers"]
    assert container["gpus"][0]["mark"] == marks.LEASE
    program.communicate(timeout=20)
    assert stand_in.calls() > 0


OPENED = re.compile(r"^open (\d+) (.*/containers/.*)$", re.MULTILINE)


def test_no_host_program_opens_a_containers_file_in_a_way_that_can_wait(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor asks for too many processes: the session is full, and has masses of locks."""
    preload = compile_c(
        PROGRAMS / "preloaded" / "watch_files.c", tmp_path / "watch.so", "-shared", "-fPIC"
    )
    machine, log = Machine(), tmp_path / "files"
    monkeypatch.setenv("LD_PRELOAD", str(preload))
    monkeypatch.setenv("WATCH_FILES", str(log))
    program = stack.enter_context(machine.start("--mem", "6/15", "--", "cat"))
    wait_until(lambda: machine.sessions() and machine.smi()["containers"], "it runs")
    (name,) = machine.sessions()
    directory = machine.state / "containers" / name
    stack.enter_context(Hostile("locks", directory / "ledger", MANY))
    log.write_text("")
    command = [sys.executable, "-m", "cgpu_cli.main"]
    where = ["--state-dir", str(machine.state)]
    for words in (["get"], ["get", name], ["ls", "-R"], ["set", name, "weight=2"], ["doctor"]):
        done = machine.run_command([*command, *words, *where])
        assert words == ["doctor"] or done.returncode == 0, done.stderr
    machine.smi()
    assert machine.run("--mem", "1/15", "--", "true").returncode == 0
    program.communicate(timeout=20)
    output = log.read_text()
    opened = [(int(flags, 8), Path(path).name) for flags, path in OPENED.findall(output)]
    harmless = os.O_PATH | os.O_DIRECTORY | os.O_EXCL
    assert {"limits", "ledger", "record.json"} <= {name for _, name in opened}
    waiting = [(oct(f), name) for f, name in opened if not f & (os.O_NONBLOCK | harmless)]
    assert waiting == []
    # closing them walks the locks that a container has made: each of eight programs does so once
    assert 0 < sum(name == "limits" for _, name in opened) <= 8
    assert output.count("ask ") < 8 * FEW  # of eight processes
