"""Admission to a node's GPUs, and that the dead give back what they had (ENV-9, SCH-10)."""

from __future__ import annotations

import builtins
import errno
import itertools
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cgpu_native
from cgpu_env import CgpuError, GpuShare, Request
from cgpu_env.request import Asked
from cgpu_node.facts.node import Node, NodeGpu
from cgpu_node.settings.rules import Defaults
from cgpu_node.shares import liveness, record
from cgpu_node.shares import registry as registries
from cgpu_node.shares.liveness import start_time
from cgpu_node.shares.registry import AdmissionError, Owner, Registry
from lab.shares.changing import change_container

pytestmark = pytest.mark.unit

MIB = 1 << 20
UUIDS = [f"GPU-0000000{i}-1111-2222-3333-444444444444" for i in range(2)]
TOTAL = 15109 * MIB
SIX, NINE = TOTAL * 6 // 15, TOTAL * 9 // 15


def make_node(*, max_inst: int = 20, overcommit: bool = False) -> Node:
    gpus = [NodeGpu(i, uuid, "Tesla T4", TOTAL, 100 * MIB, ()) for i, uuid in enumerate(UUIDS)]
    return Node("535.0", "/nowhere", {}, {}, tuple(gpus), (), max_inst, overcommit)


def ask(*sizes: int, weight: int = 1, first: int = 0) -> Request:
    shares = [GpuShare(i, UUIDS[i], size) for i, size in enumerate(sizes, start=first)]
    return Request(tuple(shares), weight, high_priority=False)


def asked(request: Request, given: dict[str, str], default_memsize: int | str = 0) -> Request:
    """``request``, as made from the variables ``given``."""
    return request._replace(asked=Asked(given, default_memsize=default_memsize))


def myself() -> Owner:
    return Owner(os.getpid(), start_time(os.getpid()) or 0, None)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(str(tmp_path))


def admit(registry: Registry, name: str, request: Request, **more: object) -> str:
    node = more.pop("node", make_node())
    owner = more.pop("owner", myself())
    kind = more.pop("kind", "container")
    return registry.admit(name, kind, request, node, owner, ["true"], **more)  # type: ignore[arg-type]


def leftovers(registry: Registry) -> list[str]:
    return sorted(path.name for path in Path(registry.state_dir, "containers").iterdir())


def test_a_directory_holds_limits_ledger_and_record_with_their_modes(registry: Registry) -> None:
    directory = Path(admit(registry, "abc", ask(SIX, NINE, weight=3)))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
    assert modes == {"limits": 0o644, "ledger": 0o666, "record.json": 0o600}
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(directory.parent.stat().st_mode) == 0o711
    limits = cgpu_native.read_limits(directory / "limits")
    assert (limits.id, limits.weight, limits.policy) == ("abc", 3, 6)
    assert [
        (g.uuid, g.index, g.cap_bytes, g.total_bytes, g.context_bytes) for g in limits.gpus
    ] == [
        (UUIDS[0], 0, SIX, TOTAL, 100 * MIB),
        (UUIDS[1], 1, NINE, TOTAL, 100 * MIB),
    ]
    with cgpu_native.Ledger.observe(directory / "ledger") as ledger:
        assert ledger.used(0) == 0


def test_what_was_admitted_is_read_back(registry: Registry) -> None:
    admit(registry, "abc", ask(SIX, weight=2))
    (entry,) = registry.records()
    assert (entry.id, entry.kind, entry.weight, entry.command) == ("abc", "container", 2, ("true",))
    assert entry.gpus == (GpuShare(0, UUIDS[0], SIX),)
    assert entry.owner == myself()


def test_caps_may_fill_a_gpu_to_the_byte_and_no_further(registry: Registry) -> None:
    """ENV-9."""
    admit(registry, "one", ask(SIX))
    admit(registry, "two", ask(TOTAL - SIX))
    given = {"ALIYUN_COM_GPU_MEM_CONTAINER": "1"}
    with pytest.raises(AdmissionError) as refusal:
        admit(registry, "three", asked(ask(MIB), given))
    assert str(refusal.value) == (
        "ALIYUN_COM_GPU_MEM_CONTAINER=1: 1 MiB asked on GPU 0, where 0 of 15109 MiB are free"
    )
    assert refusal.value.exit_code == 2
    assert leftovers(registry) == ["one", "two"]


def test_each_gpu_has_an_account_of_its_own(registry: Registry) -> None:
    admit(registry, "one", ask(TOTAL))
    admit(registry, "two", ask(TOTAL, first=1))
    with pytest.raises(AdmissionError, match="on GPU 1"):
        admit(registry, "three", ask(MIB, first=1))


def test_overcommit_lets_caps_add_up_to_more(registry: Registry) -> None:
    for name in ("one", "two", "three"):
        admit(registry, name, ask(TOTAL), node=make_node(overcommit=True))
    assert len(registry.records()) == 3


def test_what_creation_said_is_kept_until_the_cap_is_another(registry: Registry) -> None:
    """ENV-2: for the server's log, and for cgpu doctor."""
    directory = admit(registry, "one", ask(SIX)._replace(notes=("GPU 0 is smaller", "GPU 1 too")))
    assert record.notes(directory) == ("GPU 0 is smaller", "GPU 1 too")
    change_container(registry, "one", {"weight": 2}, Defaults())
    assert len(record.notes(directory)) == 2
    change_container(registry, "one", {"memsize": MIB}, Defaults())
    assert record.notes(directory) == ()
    change_container(registry, "one", {"memsize": 2 * MIB}, Defaults())
    assert record.notes(admit(registry, "two", ask(SIX))) == ()


def test_weights_fill_max_inst_and_no_further(registry: Registry) -> None:
    """SCH-10."""
    admit(registry, "one", ask(MIB, weight=15))
    with pytest.raises(AdmissionError) as refusal:
        admit(registry, "two", ask(MIB, weight=6))
    assert str(refusal.value) == "ALIYUN_COM_GPU_SCHD_WEIGHT=6: GPU 0 has 5 of 20 free"
    admit(registry, "three", ask(MIB, weight=5))


def test_a_default_size_for_which_there_is_no_room_is_refused_by_its_name(
    registry: Registry,
) -> None:
    """ENV-4, ENV-9: no variable is named that nobody set."""
    admit(registry, "one", ask(NINE))
    for given in ({}, {"ALIYUN_COM_GPU_MEM_CONTAINER": " "}):
        with pytest.raises(AdmissionError) as refusal:
            admit(registry, "two", asked(ask(NINE), given, NINE))
        assert str(refusal.value) == (
            "the node's default_memsize: 9065 MiB asked on GPU 0, where 6043 of 15109 MiB are free"
        )
    with pytest.raises(AdmissionError, match="the node's default_memsize=60%: 9065 MiB asked on"):
        admit(registry, "two", asked(ask(NINE), {}, "60%"))


def test_max_inst_bounds_the_number_of_containers(registry: Registry) -> None:
    node = make_node(max_inst=2)
    admit(registry, "one", ask(MIB), node=node)
    admit(registry, "two", ask(MIB), node=node)
    with pytest.raises(
        AdmissionError,
        match="ALIYUN_COM_GPU_MEM_CONTAINER: GPU 0 has 2 containers already, and max_inst allows 2",
    ):
        admit(registry, "three", ask(MIB), node=node)


def test_more_gpus_than_the_limits_page_has_room_for_are_refused(registry: Registry) -> None:
    shares = tuple(GpuShare(i, UUIDS[0], MIB) for i in range(cgpu_native.MAX_GPUS + 1))
    with pytest.raises(AdmissionError, match="33 GPUs: at most 32"):
        admit(registry, "many", Request(shares, 1, high_priority=False))


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "../x", "a\0b", "a b", "é", "x" * 65]
)
def test_an_id_that_could_leave_the_directory_is_refused(registry: Registry, name: str) -> None:
    """REL-5."""
    with pytest.raises(CgpuError, match="container id"):
        admit(registry, name, ask(MIB))
    with pytest.raises(CgpuError, match="container id"):
        registry.remove(name)


def test_an_id_in_use_is_refused_and_its_owner_undisturbed(registry: Registry) -> None:
    admit(registry, "abc", ask(SIX))
    with pytest.raises(AdmissionError, match="one of that name"):
        admit(registry, "abc", ask(MIB))
    assert registry.records()[0].gpus[0].cap_bytes == SIX


def test_remove_gives_back_and_may_be_repeated(registry: Registry) -> None:
    admit(registry, "abc", ask(TOTAL))
    registry.remove("abc")
    registry.remove("abc")
    assert leftovers(registry) == []
    admit(registry, "next", ask(TOTAL))


def test_giving_back_makes_nothing_in_a_directory_that_is_being_removed(
    registry: Registry,
) -> None:
    Path(registry.state_dir, "containers", "abc").mkdir(parents=True)
    with pytest.raises(CgpuError, match="No such file or directory"):
        registry.remove("abc")
    assert [path.name for path in Path(registry.state_dir).iterdir()] == ["containers"]


def test_the_next_admission_removes_a_container_whose_owner_died(registry: Registry) -> None:
    """REL-3."""
    with subprocess.Popen(["/bin/sleep", "60"]) as owner:
        admit(
            registry, "dead", ask(TOTAL), owner=Owner(owner.pid, start_time(owner.pid) or 0, None)
        )
        with pytest.raises(AdmissionError):
            admit(registry, "early", ask(TOTAL))
        owner.kill()
    assert registry.records() == []
    admit(registry, "next", ask(TOTAL))
    assert leftovers(registry) == ["next"]


def test_a_zombie_does_not_keep_a_container(registry: Registry) -> None:
    with subprocess.Popen(["/bin/true"]) as owner:
        started = start_time(owner.pid) or 1
        os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)
        admit(registry, "dead", ask(TOTAL), owner=Owner(owner.pid, started, None))
        assert registry.records() == []


def test_another_process_with_the_owners_pid_does_not_keep_a_container(registry: Registry) -> None:
    admit(registry, "old", ask(TOTAL), owner=Owner(os.getpid(), 1, None))
    assert registry.records() == []


def test_a_runtime_directory_keeps_a_container(registry: Registry, tmp_path: Path) -> None:
    runtime = tmp_path / "runc" / "abc"
    runtime.mkdir(parents=True)
    admit(registry, "abc", ask(TOTAL), owner=Owner(0, 0, str(runtime)))
    assert [entry.id for entry in registry.records()] == ["abc"]
    runtime.rmdir()
    admit(registry, "next", ask(TOTAL))
    assert leftovers(registry) == ["next"]


def test_a_process_that_holds_memory_keeps_a_session_whose_owner_died(registry: Registry) -> None:
    """REL-3: what a program left running in the background still counts."""
    directory = admit(registry, "abc", ask(TOTAL), owner=Owner(0, 0, None), kind="session")
    holder = (
        "import cgpu_native, sys; ledger = cgpu_native.Ledger.attach(sys.argv[1]);"
        "ledger.charge(0, 1 << 30, 1 << 20); print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", holder, f"{directory}/ledger"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert [entry.id for entry in registry.records()] == ["abc"]
        process.kill()
    assert registry.records() == []


@pytest.mark.parametrize("kind", ["container", "session"])
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_whoever_cannot_look_takes_nobody_for_dead(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, number: int
) -> None:
    """REL-2: whichever call fails, reap fails too, or a container stays."""
    runtime = tmp_path / "state"
    runtime.mkdir()
    admit(registry, "old", ask(SIX), kind=kind, owner=Owner(-1, 0, str(runtime)))
    admit(registry, "new", ask(NINE), kind=kind)
    failed = 0
    for call in range(60):
        with monkeypatch.context() as patch:
            fail_at(patch, call, OSError(number, os.strerror(number)))
            try:
                assert len(registry.reap(registry.gone())) == 2
            except (CgpuError, OSError):
                failed += 1
        assert leftovers(registry) == ["new", "old"], call
    assert failed >= 4


def fail_at(patch: pytest.MonkeyPatch, which: int, error: OSError) -> None:
    """Let one of the next calls that look at a file fail, counted from 0."""
    calls = itertools.count()

    def failing(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **more: Any) -> Any:
            if next(calls) == which:
                raise error
            return function(*args, **more)

        return called

    for module, name in [(builtins, "open"), *((os, n) for n in ("open", "listdir", "readlink"))]:
        patch.setattr(module, name, failing(getattr(module, name)))
    patch.setattr(os, "stat", failing(os.stat))


def test_all_ended_sessions_are_found_in_one_pass_that_holds_up_no_admission(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REL-8: whose processes can have any number of mounts, which take long to read."""
    for number in range(9):
        admit(registry, f"s{number}", ask(MIB), kind="session", owner=Owner(-1, 0, None))
    passes, whole = [], os.listdir

    def listed(path: str) -> list[str]:
        if path == "/proc":
            with Registry(registry.state_dir, patience=0.1).locked():  # nobody else has it
                passes.append(path)
        return whole(path)

    monkeypatch.setattr(os, "listdir", listed)
    admit(registry, "next", ask(TOTAL))
    assert leftovers(registry) == ["next"]
    assert len(passes) == 1
    admit(registry, "s1", ask(MIB, first=1))
    assert len(passes) == 1, "nothing has ended"


def test_a_pass_that_finds_too_many_mounts_keeps_the_shares_and_rests(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    admit(registry, "old", ask(SIX), kind="session", owner=Owner(-1, 0, None))
    passes = []

    def never(directories: list[str]) -> set[str]:
        passes.append(directories)
        spent = time.thread_time() + 0.02
        while time.thread_time() < spent:
            pass
        return {*directories}

    monkeypatch.setattr(liveness, "inhabited", never)
    monkeypatch.setattr(registries, "MOUNTS_CPU_S", 0.01)
    for name in ("one", "two"):
        admit(registry, name, ask(MIB), owner=Owner(-1, 0, None))
        assert leftovers(registry) == sorted(["old", name]), "containers are not kept by mounts"
    assert len(passes) == 1


def test_a_session_that_ends_after_the_pass_lives_until_the_next(registry: Registry) -> None:
    admit(registry, "old", ask(SIX), kind="session", owner=Owner(-1, 0, None))
    gone = registry.gone()
    registry.remove("old")
    admit(registry, "old", ask(SIX), kind="session")
    with registry.locked():
        assert [entry.id for entry in registry.reap(gone)] == ["old"], "it is another one"


@pytest.mark.parametrize("kind", ["container", "session"])
def test_a_folder_that_cannot_be_removed_stops_no_admission_and_has_no_share(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """REL-8: as when something is mounted in it."""
    stuck = admit(registry, "stuck", ask(TOTAL), kind=kind, owner=Owner(-1, 0, None))
    (Path(registry.state_dir) / "containers" / "file").touch()
    unlink = os.unlink

    def refuse(path: str) -> None:
        if path.startswith(f"{stuck}/limits"):
            raise OSError(errno.EBUSY, "Device or resource busy", path)
        unlink(path)

    monkeypatch.setattr(os, "unlink", refuse)
    for name in ("one", "two"):
        admit(registry, name, ask(SIX))
        assert "stuck" in leftovers(registry)
    assert [entry.id for entry in registry.records()] == ["one", "two"]
    monkeypatch.undo()
    admit(registry, "three", ask(MIB))
    assert leftovers(registry) == ["file", "one", "three", "two"]


def test_what_a_killed_builder_left_is_removed(registry: Registry) -> None:
    """REL-3."""
    half = Path(registry.state_dir, "containers", ".half")
    (half / "real").mkdir(parents=True)
    (half / "limits").write_bytes(b"x")
    (half / "real" / "link").symlink_to("/")
    admit(registry, "abc", ask(MIB))
    assert leftovers(registry) == ["abc"]


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "null", "[" * 9999, '{"version": 2}', '{"version": 1}'),
        '{"version": 1e999, "id": "", "kind": "", "owner": [1, 1, ""], "gpus": [], "weight": 1}',
        *(
            '{"version": 1, "id": "a", "kind": "container", '
            f'"owner": [1, START, {folder}], "gpus": {gpus}, "weight": {weight}}}'
            for folder, gpus, weight in (
                *(("null", '[[0, "UUID", 1]]', weight) for weight in (1 << 80, -1, 0)),
                *((folder, '[[0, "UUID", 1]]', 1) for folder in ("[]", 1, r'"/\u0000"')),
                *(("null", gpus, 1) for gpus in (f'[[0, "UUID", {1 << 80}]]', "[]")),
            )
        ),
    ],
)
def test_a_damaged_record_is_removed_and_stops_nobody(registry: Registry, content: str) -> None:
    name = f"damaged-{os.getpid()}"  # no other test has a container of this name mounted
    directory = admit(registry, name, ask(MIB))
    content = content.replace("START", str(start_time(1))).replace("UUID", UUIDS[0])
    Path(directory, "record.json").write_text(content)
    admit(registry, "next", ask(TOTAL))
    assert leftovers(registry) == ["next"]


def test_removal_follows_no_link(registry: Registry, tmp_path: Path) -> None:
    """REL-4."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    directory = admit(registry, "abc", ask(MIB))
    Path(directory, "link").symlink_to(precious)
    registry.remove("abc")
    assert (precious / "file").read_text() == "kept"


def test_a_full_disk_leaves_nothing_half_made(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REL-1."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cgpu_native, "create_ledger", full)
    with pytest.raises(CgpuError, match="No space left on device"):
        admit(registry, "abc", ask(MIB))
    assert leftovers(registry) == []


def test_the_policy_is_the_one_that_the_gpu_is_under(registry: Registry) -> None:
    """CLI-2."""
    node = make_node()
    admit(registry, "one", ask(MIB), node=node, policy=3)
    admit(registry, "two", ask(MIB), node=node)
    assert [entry.policy for entry in registry.records()] == [3, 3]
    with pytest.raises(AdmissionError) as refusal:
        admit(registry, "three", ask(MIB), node=node, policy=1)
    assert str(refusal.value) == "--policy 1: GPU 0 is under policy 3 while one runs"
    admit(registry, "four", ask(MIB, first=1), node=node, policy=1)


RACER = """
import os, sys, test_registry as t
registry, size = t.Registry(sys.argv[1]), t.TOTAL // 30
print("ready", flush=True)
while not os.path.exists(sys.argv[1] + "/go"):
    pass
admitted = 0
for number in range(5):
    try:
        t.admit(registry, f"{sys.argv[2]}-{number}", t.ask(size), node=t.make_node(max_inst=25))
        admitted += 1
    except t.AdmissionError:
        pass
print(admitted, flush=True)
sys.stdin.read()
"""


def test_many_admissions_at_once_fill_the_gpu_exactly(tmp_path: Path) -> None:
    """ENV-9: sum and count hold under races."""
    path = [str(Path(__file__).parent), *filter(None, sys.path)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(tmp_path), f"racer{i}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            text=True,
        )
        for i in range(10)
    ]
    outputs = [process.stdout for process in processes if process.stdout]
    for output in outputs:
        assert output.readline() == "ready\n"
    (tmp_path / "go").touch()
    admitted = [int(output.readline()) for output in outputs]
    for process in processes:
        process.communicate("")
    assert sum(admitted) == 25
    assert len(leftovers(Registry(str(tmp_path)))) == 25


def test_a_lock_that_a_stopped_process_holds_is_not_waited_for_without_end(tmp_path: Path) -> None:
    """REL-1: a message names the process that is waited for."""
    registry = Registry(str(tmp_path), patience=0.1)
    with registry.locked(make=True), pytest.raises(CgpuError) as refusal, registry.locked():
        raise AssertionError("two have it")
    assert f"process {os.getpid()} has held its lock for 0.1 seconds" in str(refusal.value)
    assert "kill -9" in refusal.value.hint
    with registry.locked():
        pass
    assert registry.records() == []
