"""Sessions end by themselves, whoever is killed, and their share is free again (REL-3)."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from lab.machine.audited import until
from lab.machine.servers import end_servers
from lab.worlds.cgpu_run import World

pytestmark = pytest.mark.integration

WHOLE = ("--mem", "15/15", "--")
WAIT = ("sh", "-c", "echo; read wait")


@pytest.fixture(params=["root", "user"])
def world(request: pytest.FixtureRequest) -> World:
    return World(root=request.param == "root")


def keeper_of(process: subprocess.Popen[str]) -> int:
    """The process that sleeps on a pidfd of the program."""
    for folder in filter(lambda path: path.name.isdecimal(), Path("/proc").iterdir()):
        with contextlib.suppress(OSError):
            if f"Pid:\t{process.pid}\n" in (folder / "fdinfo" / "3").read_text():
                return int(folder.name)
    raise AssertionError("no keeper")


def files_of(proc: Path) -> dict[str, str]:
    """What a process has open, by its descriptors."""
    found = {}
    for fd in (proc / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found[fd.name] = str(fd.readlink())
    return found


def started(world: World, *arguments: str) -> subprocess.Popen[str]:
    """A program that has begun."""
    process = world.start(*arguments)
    assert process.stdout is not None
    assert process.stdout.readline() == "\n"
    return process


def test_a_session_is_gone_after_its_program(world: World) -> None:
    world.run(*WHOLE, "true")
    world.wait_until_empty()


def test_the_whole_gpu_is_free_for_the_very_next_command(world: World) -> None:
    for _ in range(5):
        assert world.run(*WHOLE, "true").returncode == 0


def test_a_killed_program_leaves_nothing(world: World) -> None:
    process = started(world, *WHOLE, *WAIT)
    process.kill()
    process.wait()
    world.wait_until_empty()


def test_a_killed_keeper_leaves_work_for_the_next_command_only(world: World) -> None:
    process = started(world, *WHOLE, *WAIT)
    os.kill(keeper_of(process), signal.SIGKILL)
    process.kill()
    process.wait()
    assert len(world.sessions()) == 1
    assert world.run(*WHOLE, "true").returncode == 0
    world.wait_until_empty()


def test_a_killed_keeper_does_not_end_a_session_that_runs(world: World) -> None:
    process = started(world, *WHOLE, *WAIT)
    os.kill(keeper_of(process), signal.SIGKILL)
    refused = world.run(*WHOLE, "true")
    assert refused.returncode == 2
    process.communicate("\n")
    assert process.returncode == 0


def test_what_a_program_leaves_running_keeps_its_session(world: World) -> None:
    process = started(world, *WHOLE, "sh", "-c", "(sleep 60 & echo $! >&2; echo)")
    out_of_the_way = process.stderr
    assert out_of_the_way is not None
    left_behind = int(out_of_the_way.readline())
    process.wait()
    refused = world.run(*WHOLE, "true")
    assert refused.returncode == 2
    os.kill(left_behind, signal.SIGKILL)
    world.wait_until_empty()


def test_the_keeper_holds_no_terminal_pipe_or_directory(world: World) -> None:
    process = started(world, *WHOLE, *WAIT)
    proc = Path("/proc", str(keeper_of(process)))
    nothing = dict.fromkeys("012", "/dev/null")
    until(
        lambda: files_of(proc) == {**nothing, "3": "anon_inode:[pidfd]"},
        "the keeper has nothing else open",
    )
    assert str((proc / "cwd").readlink()) == "/"
    assert os.getsid(int(proc.name)) != os.getsid(0)
    process.communicate("\n")


def test_death_at_a_random_moment_of_the_start_leaves_nothing(world: World) -> None:
    """REL-3: killed at any point of creation, nothing is left after the next command."""
    moments = random.Random(535)
    world.run(*WHOLE, "true")
    for _ in range(12):
        process = world.start(*WHOLE, "sleep", "60")
        time.sleep(moments.uniform(0.0, 0.12))
        process.kill()
        process.communicate()
    assert world.run(*WHOLE, "true").returncode == 0
    world.wait_until_empty()


def test_sessions_at_once_are_admitted_up_to_the_last_byte(world: World) -> None:
    """ENV-9, MEM-6: twenty ask for a third of 15 GiB each; three get it."""
    world.run(*WHOLE, "true")
    world.wait_until_empty()
    processes = [world.start("--mem", "5/15", "--", *WAIT) for _ in range(20)]
    results = []
    for process in processes:
        assert process.stdout is not None
        results.append(process.stdout.readline())
    assert results.count("\n") == 3
    for process in processes:
        _, err = process.communicate("\n")
        assert process.returncode in (0, 2)
        if process.returncode == 2:
            assert err == (
                "cgpu-run: --mem 5/15: 5036 MiB asked on GPU 0, where 0 of 15109 MiB are free\n"
            )
    world.wait_until_empty()


def test_weights_at_once_are_admitted_up_to_max_inst() -> None:
    """SCH-10."""
    world = World()
    flags = ("--mem", "1/15", "--weight", "8", "--")
    processes = [started(world, *flags, *WAIT) for _ in range(2)]
    refused = world.run(*flags, "true")
    assert refused.returncode == 2
    assert refused.stderr == "cgpu-run: --weight 8: GPU 0 has 4 of 20 free\n"
    for process in processes:
        process.communicate("\n")


def test_a_policy_holds_for_all_on_a_gpu_while_one_of_them_runs() -> None:
    """CLI-2."""
    world = World()
    flags = ("--mem", "1/15", "--policy")
    first = started(world, *flags, "3", "--", *WAIT)
    assert world.run(*flags, "3", "--", "true").returncode == 0
    refused = world.run(*flags, "1", "--", "true")
    assert refused.returncode == 2
    name = refused.stderr.split()[-2]
    assert name in world.sessions()
    assert refused.stderr == (f"cgpu-run: --policy 1: GPU 0 is under policy 3 while {name} runs\n")
    first.communicate("\n")
    assert world.run(*flags, "1", "--", "true").returncode == 0


@pytest.mark.parametrize("without", ["--no-namespaces", "namespaces"])
def test_a_full_disk_is_a_refusal_and_leaves_nothing(without: str) -> None:
    """REL-1."""
    world = World()
    world.run(*WHOLE, "true")
    world.wait_until_empty()
    state, kept = world.state, (world.state / "node.json").read_bytes()
    end_servers(state)  # one that is about to start would take its lock on the full disk
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", str(state)]
    subprocess.run(mount, check=True)
    try:
        (state / "node.json").write_bytes(kept)
        flags = [without] if without.startswith("--") else []
        done = world.run(*flags, *WHOLE, "true")
        assert done.returncode == 2
        assert "No space left on device" in done.stderr
        assert len(done.stderr.splitlines()) == 1
        world.wait_until_empty()
    finally:
        end_servers(state)
        subprocess.run(["umount", str(state)], check=True)


def test_a_state_directory_that_cannot_be_written_is_a_refusal() -> None:
    """REL-1."""
    world = World()
    done = world.run_command(world.command("--state-dir", "/proc/cgpu", *WHOLE, "true"))
    assert done.returncode == 2
    assert done.stderr == "cgpu-run: state directory /proc/cgpu: No such file or directory\n"


def test_a_state_directory_of_somebody_else_is_refused() -> None:
    """REL-5."""
    world = World(root=False)
    world.state.mkdir(mode=0o777)
    done = world.run(*WHOLE, "true")
    assert (done.returncode, done.stderr) == (
        2,
        f"cgpu-run: state directory {world.state}: owned by user 0, not by you\n",
    )
    world.state.rmdir()
    (world.state.parent / "open").mkdir()
    (world.state.parent / "open").chmod(0o777)
    os.chown(world.state.parent / "open", 65534, 65534)
    done = world.run("--state-dir", world.state.parent / "open", *WHOLE, "true")
    assert done.returncode == 2
    assert "other users can write to it" in done.stderr
