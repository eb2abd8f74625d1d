"""The control tree of a server, as shells see it (TREE-1..4, MEM-8, SCH-9)."""

from __future__ import annotations

import errno
import os
import signal
import stat
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cgpu_env.version import VERSION
from cgpu_node.settings import rules
from lab.driver.attached import AttachedLedger
from lab.worlds import cgpu_run as cgpu_run_world
from lab.worlds.server import MIB, wait_until
from lab.worlds.tree import ID, World, output, worlds

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration
T4_BYTES = 15109 * MIB
POLICIES = rules.format_allowed("policy")
FOLLOW = cgpu_run_world.PROGRAMS / "follow_cap.py"
OUT_OF_MEMORY = 2


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from worlds(tmp_path)


def test_its_nodes_have_the_names_and_modes_of_cgpu(world: World) -> None:
    """As deploy/README.md lists them."""
    world.admit(ID)
    world.serve()
    found = {
        str(path.relative_to(world.tree)): stat.filemode(path.stat().st_mode)
        for path in world.tree.rglob("*")
    }
    short = ID[:12]
    writable = ["default_memsize", "inst_ctl", "upgrade"]
    writable += [f"0/{name}" for name in ("max_inst", "policy", "prio_ratio")]
    writable += [f"0/{short}/{name}" for name in ("highprio", "memsize", "weight")]
    readable = ["version", "0/free_weight", "0/major", f"0/{short}/id", f"0/{short}/meminfo"]
    assert found == {
        **dict.fromkeys(["0", f"0/{short}"], "drwxr-xr-x"),
        **dict.fromkeys(writable, "-rw-r--r--"),
        **dict.fromkeys(readable, "-r--r--r--"),
    }


def test_what_it_says_before_anything_was_changed(world: World) -> None:
    """TREE-1: meminfo of a container without processes."""
    world.admit(ID, weight=3)
    world.serve()
    output = {str(path.relative_to(world.tree)): path for path in world.tree.rglob("*")}
    short = f"0/{ID[:12]}"
    assert {name: path.read_text() for name, path in output.items() if path.is_file()} == {
        "default_memsize": "0\n",
        "inst_ctl": f"{ID[:12]} 0\n",
        "upgrade": f"Running: {VERSION}\nInstalled: {VERSION}\nBack: none\nOlder: 0\n",
        "version": f"{VERSION}\n",
        "0/free_weight": "17\n",
        "0/major": "0\n",
        "0/max_inst": "20\n",
        "0/policy": "6\n",
        "0/prio_ratio": "80\n",
        f"{short}/highprio": "0\n",
        f"{short}/id": f"{ID}\n",
        f"{short}/memsize": f"{MIB}\n",
        f"{short}/meminfo": f"Free: {MIB}\n",
        f"{short}/weight": "3\n",
    }


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("default_memsize", "1048576"),
        ("0/policy", "2"),
        ("0/max_inst", "10"),
        ("0/prio_ratio", "60"),
        (f"0/{ID[:12]}/weight", "4"),
        (f"0/{ID[:12]}/highprio", "1"),
        (f"0/{ID[:12]}/memsize", "4194304"),
    ],
)
def test_what_is_written_is_what_is_read(world: World, path: str, text: str) -> None:
    """TREE, SCH-9, MEM-8: also after the server was killed."""
    world.admit(ID)
    server = world.serve()
    assert world.write(path, text) == ""
    assert world.read(path) == f"{text}\n"
    server.kill()
    server.wait()
    world.serve()
    assert world.read(path) == f"{text}\n"


def test_weight_and_priority_are_of_all_gpus_of_a_container(world: World) -> None:
    """TREE, SCH-9: a cap is of the GPU in whose folder it is written."""
    world.admit(ID, gpus=2)
    world.serve()
    for name, text in (("weight", "6"), ("highprio", "1")):
        assert world.write(f"1/{ID[:12]}/{name}", text) == ""
        assert world.read(f"0/{ID[:12]}/{name}") == f"{text}\n"
    assert world.write(f"1/{ID[:12]}/memsize", str(4 * MIB)) == ""
    assert [world.read(f"{gpu}/{ID[:12]}/memsize") for gpu in (0, 1)] == [
        f"{MIB}\n",
        f"{4 * MIB}\n",
    ]


def test_memory_is_written_in_the_units_that_people_type(world: World) -> None:
    """TREE, MEM-8: and read in bytes, as cGPU has it."""
    world.admit(ID)
    world.serve()
    for path, text, size in (
        ("default_memsize", "2GiB", 2 << 30),
        ("default_memsize", "40%", "40%"),
        ("default_memsize", "6/15", "6/15"),
        (f"0/{ID[:12]}/memsize", "512MiB", 512 << 20),
        (f"0/{ID[:12]}/memsize", "40%", T4_BYTES * 2 // 5),
        (f"0/{ID[:12]}/memsize", "6/15", T4_BYTES * 6 // 15),
    ):
        assert world.write(path, text) == ""
        assert world.read(path) == f"{size}\n"


def test_what_is_odd_about_a_cap_that_is_written_is_in_the_log(world: World) -> None:
    """TREE, MEM-8, ENV-2: as `cgpu set` prints it."""
    world.admit(ID)
    server = world.serve()
    path = f"0/{ID[:12]}/memsize"
    assert world.write(path, "6/80") == ""
    with AttachedLedger.attach(world.state / "containers" / ID / "ledger") as process:
        process.charge(0, 3 << 20, 3 << 20)
        assert world.write(path, "1MiB") == ""
    lines = output(server)
    misstated = "GPU 0 has 15109 MiB, not the 80 GiB of memsize=6/80: 6 of 80 is 1133 MiB"
    assert f'WARNING whole_misstated container={ID} note="{misstated}"' in lines
    held = "GPU 0: it holds 3MiB, 2MiB above its cap"
    assert f'WARNING cap_below_use container={ID} note="{held}' in lines


def test_a_container_is_found_by_its_whole_id_and_by_the_beginning(world: World) -> None:
    """TREE: it is listed once, and what means more than one container is not there."""
    world.admit(ID, weight=3)
    other = f"{ID[:6]}{'f' * 58}"
    world.admit(other)
    world.serve()
    for name in (ID, ID[:12], ID[:7]):
        assert world.read(f"0/{name}/weight") == "3\n"
    assert world.write(f"0/{other}/weight", "2") == ""
    assert world.read(f"0/{other[:7]}/weight") == "2\n"
    assert not (world.tree / "0" / ID[:6]).exists()
    folders = [path.name for path in (world.tree / "0").iterdir() if path.is_dir()]
    assert sorted(folders) == sorted([ID[:12], other[:12]])


def test_a_policy_is_written_by_its_name_too(world: World) -> None:
    """TREE, SCH-9: and read as a number, as cGPU has it."""
    world.admit(ID)
    world.serve()
    for text, number in (("fixed", 3), ("weighted fair", 6), ("Weighted-Preemptive", 2)):
        assert world.write("0/policy", text) == ""
        assert world.read("0/policy") == f"{number}\n"


@pytest.mark.parametrize(
    ("path", "text", "allowed"),
    [
        ("0/policy", "99", f"policy=99: expected {POLICIES}"),
        ("0/policy", "two", f"policy=two: expected {POLICIES}"),
        ("0/policy", "", f"policy=: expected {POLICIES}"),
        ("0/policy", "1 1", f"policy=1 1: expected {POLICIES}"),
        ("0/max_inst", "26", "max_inst=26: expected a whole number from 1 to 25"),
        ("0/prio_ratio", "19", "prio_ratio=19: expected a whole number from 20 to 99"),
        (f"0/{ID[:12]}/weight", "21", "weight=21: expected a whole number from 1 to 20"),
        (f"0/{ID[:12]}/highprio", "2", "highprio=2: expected a whole number from 0 to 1"),
        (f"0/{ID[:12]}/memsize", "0", "memsize=0: expected from 1MiB to 15109MiB, such as 6GiB"),
        (f"0/{ID[:12]}/memsize", "2GB", "memsize=2GB: there is no unit GB: expected from 1MiB"),
        ("default_memsize", "-1", "default_memsize=-1: expected 0 for none or at least 1MiB"),
        ("default_memsize", "2", "default_memsize=2: expected 0 for none or at least 1MiB"),
        ("inst_ctl", "1", "inst_ctl=1: expected reap"),
        ("upgrade", "0", "upgrade=0: expected 1"),
    ],
)
def test_a_bad_value_is_refused_and_the_log_says_what_is_allowed(
    world: World, path: str, text: str, allowed: str
) -> None:
    """TREE-2."""
    world.admit(ID)
    server = world.serve()
    before = world.read(path)
    assert "Invalid argument" in world.write(path, text)
    assert world.read(path) == before
    assert f'WARNING write_refused path=/{path} error="{allowed}' in output(server)


@pytest.mark.parametrize(
    "path", ["version", "0/free_weight", "0/major", f"0/{ID[:12]}/id", f"0/{ID[:12]}/meminfo"]
)
def test_what_can_only_be_read_refuses_root_too(world: World, path: str) -> None:
    """TREE-2."""
    world.admit(ID)
    world.serve()
    assert "Permission denied" in world.write(path, "1")
    with pytest.raises(OSError, match="denied") as refusal:
        os.truncate(world.tree / path, 0)
    assert refusal.value.errno == errno.EACCES


def test_nothing_can_be_made_or_removed(world: World) -> None:
    world.admit(ID)
    world.serve()
    for attempt in (
        (world.tree / "new").mkdir,
        lambda: (world.tree / "new").write_text("1"),
        (world.tree / "version").unlink,
        (world.tree / "0" / ID[:12]).rmdir,
        lambda: (world.tree / "version").chmod(0o777),
    ):
        with pytest.raises(PermissionError):
            attempt()


def test_who_comes_and_goes_is_there_and_gone(world: World) -> None:
    """A container's folder is there as soon as the server knows of it; two with one beginning."""
    world.admit(ID)
    world.serve()
    other = ID[:12] + "f" * 52
    world.admit(other)
    wait_until((world.tree / "0" / other).is_dir, "the folder has the whole id")
    assert world.read("inst_ctl") == f"{ID} 0\n{other} 0\n"
    world.registry.remove(other)
    assert world.write("inst_ctl", "reap") == ""
    assert world.read("inst_ctl") == f"{ID[:12]} 0\n"
    assert world.read(f"0/{ID[:12]}/id") == f"{ID}\n"


def test_many_readers_at_once_each_get_the_whole(world: World) -> None:
    world.admit(ID)
    world.serve()
    wrong: list[str] = []

    def look() -> None:
        for _ in range(20):
            text = world.read(f"0/{ID[:12]}/meminfo")
            if text != f"Free: {MIB}\n":
                wrong.append(text)

    readers = [threading.Thread(target=look) for _ in range(8)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert wrong == []


def whole_blocks(size: int) -> int:
    """What a program is shown as free: the driver takes memory in blocks of 2 MiB."""
    return size // (2 * MIB) * (2 * MIB)


def test_a_changed_cap_holds_for_a_program_that_runs(world: World) -> None:
    """MEM-8, TREE-1: what it holds stays its own, what it asks for is judged by the new cap."""
    machine = cgpu_run_world.World()
    world.state = machine.state
    machine.state.mkdir(mode=0o700)
    server = world.serve("--driver-dir", str(machine.driver))
    program = machine.start("--mem", "6/15", "--", sys.executable, "-I", FOLLOW, machine.driver)

    def ask(line: str) -> list[int]:
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdin.write(f"{line}\n")
        program.stdin.flush()
        return [int(word) for word in program.stdout.readline().split()]

    free, total = ask("info")
    name = f"0/{machine.sessions()[0]}"
    # the program may begin before the server has read of its session
    wait_until((world.tree / name).is_dir, "the session has a folder")
    assert total == int(world.read(f"{name}/memsize"))
    assert ask(f"take {100 * MIB}") == [0]
    meminfo = world.read(f"{name}/meminfo").splitlines()
    held = int(meminfo[1].split()[-1])
    assert meminfo == [f"Free: {total - held}", f"PID: {program.pid} Mem: {held}"]
    assert whole_blocks(total - held) == free - 100 * MIB
    for cap, status in ((held + MIB, OUT_OF_MEMORY), (held - MIB, OUT_OF_MEMORY), (total, 0)):
        assert world.write(f"{name}/memsize", str(cap)) == ""
        assert ask("info") == [whole_blocks(max(0, cap - held)), cap]
        assert ask(f"take {2 * MIB}") == [status]
    assert ask("free") == [0]
    os.kill(program.pid, signal.SIGKILL)
    program.communicate()
    server.terminate()
    server.wait(20)
