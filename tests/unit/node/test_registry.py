"""Admission to a node's GPUs, and giving back (ENV-9, SCH-10, DRA-2)."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import cgpu_native
from cgpu_env import CgpuError, GpuShare, Request
from cgpu_node.settings.rules import Defaults
from cgpu_node.shares import record
from cgpu_node.shares.registry import Registry
from lab.shares.changing import change_container
from lab.worlds.registry import (
    MIB,
    NINE,
    SIX,
    TOTAL,
    UUIDS,
    admit,
    ask,
    asked,
    leftovers,
    make_node,
    myself,
)

pytestmark = pytest.mark.unit


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
        assert ledger.read_used(0) == 0


def test_all_files_that_a_directory_can_hold_are_known(registry: Registry) -> None:
    """Those that ``cgpu-hook poststop`` removes (``test_hook_stages.py``)."""
    asked_for = ask(SIX)._replace(notes=("GPU 0 is smaller",))
    pod = record.PodContainer("uid", "ml", "train", "main")
    guest = record.SessionUser(os.geteuid(), os.getegid())
    directory = Path(admit(registry, "abc", asked_for, pod=pod, guest=guest))
    assert {path.name for path in directory.iterdir()} == set(record.FILES)


@pytest.mark.parametrize(
    ("command", "kept"),
    [
        (["sh", "x" * 2_000_000], ("sh", "x" * 1017 + "...")),
        (["y" * 1021, "z"], ("y" * 1021, "z")),
        (["y" * 1022, "z"], ("y" * 1020 + "...",)),
        (["a", ""] * 100_000, ("a", "") * 340 + ("...",)),
    ],
    ids=["one long word", "what just fits", "one too much", "many words"],
)
def test_only_the_beginning_of_a_long_command_is_kept(
    registry: Registry, command: list[str], kept: tuple[str, ...]
) -> None:
    directory = registry.admit("abc", "container", ask(SIX), make_node(), myself(), command)
    assert registry.list_records()[0].command == kept
    assert Path(directory, record.FILE).stat().st_size < 8192


def test_a_long_command_of_an_earlier_release_is_read_as_its_beginning(registry: Registry) -> None:
    path = Path(admit(registry, "abc", ask(SIX)), record.FILE)
    path.write_text(path.read_text().replace('"true"', '"true", "' + "x" * 5_000_000 + '"'))
    assert registry.list_records()[0].command == ("true", "x" * 1015 + "...")


def test_only_the_beginning_of_long_notes_is_kept(registry: Registry) -> None:
    directory = admit(registry, "abc", ask(SIX)._replace(notes=("first", "x" * 100_000)))
    assert record.read_notes(directory) == ("first", "x" * 4090)


def test_names_of_a_pod_that_kubernetes_does_not_allow_are_refused(registry: Registry) -> None:
    pod = record.PodContainer("uid", "ml", "train" * 1000, "main")
    with pytest.raises(CgpuError, match=r"take 50\d\d bytes together, of 4096 at most"):
        admit(registry, "abc", ask(SIX), pod=pod)
    assert leftovers(registry) == []


def test_what_was_admitted_is_read_back(registry: Registry) -> None:
    admit(registry, "abc", ask(SIX, weight=2))
    (entry,) = registry.list_records()
    assert (entry.id, entry.kind, entry.weight, entry.command) == ("abc", "container", 2, ("true",))
    assert entry.gpus == (GpuShare(0, UUIDS[0], SIX),)
    assert entry.owner == myself()


def test_caps_may_fill_a_gpu_to_the_byte_and_no_further(registry: Registry) -> None:
    """ENV-9."""
    admit(registry, "one", ask(SIX))
    admit(registry, "two", ask(TOTAL - SIX))
    given = {"ALIYUN_COM_GPU_MEM_CONTAINER": "1"}
    with pytest.raises(CgpuError) as refusal:
        admit(registry, "three", asked(ask(MIB), given))
    assert str(refusal.value) == (
        "ALIYUN_COM_GPU_MEM_CONTAINER=1: 1 MiB asked on GPU 0, where 0 of 15109 MiB are free"
    )
    assert refusal.value.exit_code == 2
    assert leftovers(registry) == ["one", "two"]


def test_each_gpu_has_an_account_of_its_own(registry: Registry) -> None:
    admit(registry, "one", ask(TOTAL))
    admit(registry, "two", ask(TOTAL, first=1))
    with pytest.raises(CgpuError, match="on GPU 1"):
        admit(registry, "three", ask(MIB, first=1))


def test_overcommit_lets_caps_add_up_to_more(registry: Registry) -> None:
    for name in ("one", "two", "three"):
        admit(registry, name, ask(TOTAL), node=make_node(overcommit=True))
    assert len(registry.list_records()) == 3


@pytest.mark.parametrize("wanted", [{"weight": 2}, {"memsize": MIB}, {"highprio": 1}])
def test_what_was_allocated_to_a_claim_is_not_changed(
    registry: Registry, wanted: dict[str, int]
) -> None:
    """DRA-2."""
    admit(registry, "one", ask(SIX), kind="claim")
    with pytest.raises(CgpuError, match="a claim has what the scheduler allocated to it"):
        change_container(registry, "one", wanted, Defaults())


def test_what_creation_said_is_kept_until_the_cap_is_another(registry: Registry) -> None:
    """ENV-2: for the server's log, and for cgpu doctor."""
    notes = ("GPU 0 has not the 80 GiB of ALIYUN_COM_GPU_MEM_DEV", "GPU 1 too")
    directory = admit(registry, "one", ask(SIX)._replace(notes=notes))
    assert record.read_notes(directory) == notes
    change_container(registry, "one", {"weight": 2}, Defaults())
    assert len(record.read_notes(directory)) == 2
    limits = f"{directory}/limits"  # by whose flag its programs print it
    assert cgpu_native.read_limits(limits).flags == cgpu_native.MISSTATED
    odd = ask(SIX)._replace(notes=("GPU 0 has not the 80 GiB of default_memsize=6/80",))
    other = f"{admit(registry, 'odd', odd)}/limits"  # no program's user can mend that
    assert cgpu_native.read_limits(other).flags == 0
    change_container(registry, "one", {"memsize": MIB}, Defaults())
    assert record.read_notes(directory) == ()
    assert cgpu_native.read_limits(limits).flags == 0
    change_container(registry, "one", {"memsize": 2 * MIB}, Defaults())
    assert record.read_notes(admit(registry, "two", ask(SIX))) == ()
    noted = ask(MIB)._replace(notes=("GPU 0 is smaller",))
    session = admit(registry, "run-1", noted, kind="session")  # cgpu-run has printed it
    assert cgpu_native.read_limits(f"{session}/limits").flags == 0


def test_dra_2_a_claim_without_cores_needs_no_weight(registry: Registry) -> None:
    """And takes none: what it leaves is there for others."""
    admit(registry, "one", ask(MIB, weight=20))
    for number in range(19):
        admit(registry, f"claim-{number}", ask(MIB, weight=0), kind="claim")
    with pytest.raises(CgpuError, match="GPU 0 has 20 containers already"):
        admit(registry, "two", ask(MIB, weight=0), kind="claim")
    registry.remove("one")
    admit(registry, "three", ask(MIB, weight=20))
    assert sorted(each.weight for each in registry.list_records()) == [*[0] * 19, 20]


def test_dra_2_nothing_but_a_claim_is_without_weight(registry: Registry) -> None:
    """A record that says so is damaged."""
    directory = admit(registry, "abc", ask(SIX, weight=0), kind="claim")
    path = Path(directory, record.FILE)
    assert record.read(directory) is not None
    path.write_text(path.read_text().replace('"claim"', '"container"'))
    assert record.read(directory) is None


def test_weights_fill_max_inst_and_no_further(registry: Registry) -> None:
    """SCH-10."""
    admit(registry, "one", ask(MIB, weight=15))
    with pytest.raises(CgpuError) as refusal:
        admit(registry, "two", ask(MIB, weight=6))
    assert str(refusal.value) == "weight=6: GPU 0 has 5 of 20 free"
    admit(registry, "three", ask(MIB, weight=5))


def test_a_default_size_for_which_there_is_no_room_is_refused_by_its_name(
    registry: Registry,
) -> None:
    """ENV-4, ENV-9: no variable is named that nobody set."""
    admit(registry, "one", ask(NINE))
    for given in ({}, {"ALIYUN_COM_GPU_MEM_CONTAINER": " "}):
        with pytest.raises(CgpuError) as refusal:
            admit(registry, "two", asked(ask(NINE), given, NINE))
        assert str(refusal.value) == (
            "the node's default_memsize: 9065 MiB asked on GPU 0, where 6043 of 15109 MiB are free"
        )
    with pytest.raises(CgpuError, match="the node's default_memsize=60%: 9065 MiB asked on"):
        admit(registry, "two", asked(ask(NINE), {}, "60%"))


def test_max_inst_bounds_the_number_of_containers(registry: Registry) -> None:
    node = make_node(max_inst=2)
    admit(registry, "one", ask(MIB), node=node)
    admit(registry, "two", ask(MIB), node=node)
    with pytest.raises(
        CgpuError,
        match="memory: GPU 0 has 2 containers already, and max_inst allows 2",
    ):
        admit(registry, "three", ask(MIB), node=node)


def test_more_gpus_than_the_limits_page_has_room_for_are_refused(registry: Registry) -> None:
    shares = tuple(GpuShare(i, UUIDS[0], MIB) for i in range(cgpu_native.MAX_GPUS + 1))
    with pytest.raises(CgpuError, match="33 GPUs: at most 32"):
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
    with pytest.raises(CgpuError, match="one of that name"):
        admit(registry, "abc", ask(MIB))
    assert registry.list_records()[0].gpus[0].cap_bytes == SIX


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
    assert [entry.policy for entry in registry.list_records()] == [3, 3]
    with pytest.raises(CgpuError) as refusal:
        admit(registry, "three", ask(MIB), node=node, policy=1)
    assert str(refusal.value) == "policy 1: GPU 0 is under policy 3 while one runs"
    admit(registry, "four", ask(MIB, first=1), node=node, policy=1)


RACER = """
import os, sys
from cgpu_env import CgpuError
from cgpu_node.shares.registry import Registry
from lab.worlds import registry as t
registry, size = Registry(sys.argv[1]), t.TOTAL // 30
print("ready", flush=True)
while not os.path.exists(sys.argv[1] + "/go"):
    pass
admitted = 0
for number in range(5):
    try:
        t.admit(registry, f"{sys.argv[2]}-{number}", t.ask(size), node=t.make_node(max_inst=25))
        admitted += 1
    except CgpuError:
        pass
print(admitted, flush=True)
sys.stdin.read()
"""


def test_many_admissions_at_once_fill_the_gpu_exactly(tmp_path: Path) -> None:
    """ENV-9: sum and count hold under races."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(tmp_path), f"racer{i}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
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
    with registry.lock(create=True), pytest.raises(CgpuError) as refusal, registry.lock():
        raise AssertionError("two have it")
    assert f"process {os.getpid()} has held its lock for 0.1 seconds" in str(refusal.value)
    assert "kill -9" in refusal.value.hint
    with registry.lock():
        pass
    assert registry.list_records() == []
