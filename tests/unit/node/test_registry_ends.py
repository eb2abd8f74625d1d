"""The dead give back what they had, whatever is in the way (REL-2, REL-3, REL-8)."""

from __future__ import annotations

import builtins
import errno
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cgpu_env import CgpuError
from cgpu_node.shares import liveness, record
from cgpu_node.shares import registry as registries
from cgpu_node.shares.liveness import start_time
from cgpu_node.shares.registry import Owner, Registry
from lab.worlds.registry import MIB, NINE, SIX, TOTAL, UUIDS, admit, ask, leftovers

pytestmark = pytest.mark.unit


def test_the_next_admission_removes_a_container_whose_owner_died(registry: Registry) -> None:
    """REL-3."""
    with subprocess.Popen(["/bin/sleep", "60"]) as owner:
        admit(
            registry, "dead", ask(TOTAL), owner=Owner(owner.pid, start_time(owner.pid) or 0, None)
        )
        with pytest.raises(CgpuError):
            admit(registry, "early", ask(TOTAL))
        owner.kill()
    assert registry.list_records() == []
    admit(registry, "next", ask(TOTAL))
    assert leftovers(registry) == ["next"]


def test_a_zombie_does_not_keep_a_container(registry: Registry) -> None:
    with subprocess.Popen(["/bin/true"]) as owner:
        started = start_time(owner.pid) or 1
        os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)
        admit(registry, "dead", ask(TOTAL), owner=Owner(owner.pid, started, None))
        assert registry.list_records() == []


def test_another_process_with_the_owners_pid_does_not_keep_a_container(registry: Registry) -> None:
    admit(registry, "old", ask(TOTAL), owner=Owner(os.getpid(), 1, None))
    assert registry.list_records() == []


def test_a_runtime_directory_keeps_a_container(registry: Registry, tmp_path: Path) -> None:
    runtime = tmp_path / "runc" / "abc"
    runtime.mkdir(parents=True)
    admit(registry, "abc", ask(TOTAL), owner=Owner(0, 0, str(runtime)))
    assert [entry.id for entry in registry.list_records()] == ["abc"]
    runtime.rmdir()
    admit(registry, "next", ask(TOTAL))
    assert leftovers(registry) == ["next"]


def test_dra_5_a_claim_lives_as_long_as_its_file(registry: Registry, tmp_path: Path) -> None:
    file = tmp_path / "claim.json"
    file.write_text("")
    admit(registry, "abc", ask(TOTAL), kind="claim", owner=Owner(0, 0, str(file)))
    assert [entry.id for entry in registry.reap(registry.find_gone())] == ["abc"]
    file.unlink()
    assert registry.list_records() == []
    admit(registry, "next", ask(TOTAL))
    assert leftovers(registry) == ["next"]


@pytest.mark.parametrize("kind", ["session", "claim"])
def test_a_process_that_holds_memory_keeps_a_share_whose_owner_is_gone(
    registry: Registry, kind: str
) -> None:
    """REL-3, DRA-5: what a program left running in the background still counts."""
    directory = admit(registry, "abc", ask(TOTAL), owner=Owner(0, 0, None), kind=kind)
    holder = (
        "import sys; from lab.driver.attached import AttachedLedger;"
        "ledger = AttachedLedger.attach(sys.argv[1]); ledger.charge(0, 1 << 30, 1 << 20);"
        "print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", holder, f"{directory}/ledger"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert [entry.id for entry in registry.list_records()] == ["abc"]
        process.kill()
    assert registry.list_records() == []


@pytest.mark.parametrize("kind", ["container", "session", "claim"])
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_whoever_cannot_look_takes_nobody_for_dead(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, number: int
) -> None:
    """REL-2: whichever call fails, reap refuses with a sentence, or a container stays."""
    runtime = tmp_path / "state"
    runtime.mkdir()
    admit(registry, "old", ask(SIX), kind=kind, owner=Owner(-1, 0, str(runtime)))
    admit(registry, "new", ask(NINE), kind=kind)
    failed = 0
    for call in range(60):
        with monkeypatch.context() as patch:
            fail_at(patch, call, OSError(number, os.strerror(number)))
            try:
                assert len(registry.reap(registry.find_gone())) == 2
            except CgpuError:
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
            with Registry(registry.state_dir, patience=0.1).lock():  # nobody else has it
                passes.append(path)
        return whole(path)

    monkeypatch.setattr(os, "listdir", listed)
    admit(registry, "next", ask(TOTAL))
    assert leftovers(registry) == ["next"]
    assert len(passes) == 1
    admit(registry, "s1", ask(MIB, first=1))
    assert len(passes) == 1, "nothing has ended"


def test_each_ended_session_is_asked_for_first_at_some_pass(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REL-8: two full ledgers take all the time that there is for asking."""
    made = [
        record.read(admit(registry, name, ask(MIB), kind="session", owner=Owner(-1, 0, None)))
        for name in ("full", "last")
    ]
    records = [each for each in made if each is not None]
    asked: list[str] = []

    def may_be_used(directory: str, _: float) -> bool:
        asked.append(Path(directory).name)
        return len(asked) % 2 == 1

    monkeypatch.setattr(liveness, "_may_be_used", may_be_used)
    for _ in range(100):
        liveness.find_ended(records)
    assert {*asked[::2]} == {"full", "last"}


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

    monkeypatch.setattr(liveness, "find_inhabited", never)
    monkeypatch.setattr(registries, "MOUNTS_CPU_S", 0.01)
    for name in ("one", "two"):
        admit(registry, name, ask(MIB), owner=Owner(-1, 0, None))
        assert leftovers(registry) == sorted(["old", name]), "containers are not kept by mounts"
    assert len(passes) == 1


def test_a_session_that_ends_after_the_pass_lives_until_the_next(registry: Registry) -> None:
    admit(registry, "old", ask(SIX), kind="session", owner=Owner(-1, 0, None))
    gone = registry.find_gone()
    registry.remove("old")
    admit(registry, "old", ask(SIX), kind="session")
    with registry.lock():
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
    assert [entry.id for entry in registry.list_records()] == ["one", "two"]
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
