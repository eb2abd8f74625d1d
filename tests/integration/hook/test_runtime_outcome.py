"""REL-3: cgpu-runtime sees how the low-level runtime ends, and is otherwise invisible."""

from __future__ import annotations

import json
import os
import pty
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lab.worlds.hook import RUNTIME, World, low_level

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.integration
SECONDS = 30


@pytest.fixture(name="world")
def _world(tmp_path: Path) -> World:
    return World(tmp_path / "world")


@pytest.fixture(name="runtime", params=["runc", "crun"])
def _runtime(request: pytest.FixtureRequest, world: World) -> Path:
    return low_level(request.param, world.folder)


def name() -> str:
    return f"cgpu-test-{secrets.token_hex(4)}"


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def stub(world: World, script: str) -> Path:
    """A low-level runtime that is a shell script, and knows no container; FOLDER is the test's."""
    path = world.folder / "stub-runc"
    script = script.replace("FOLDER", str(world.folder))
    path.write_text(f'#!/bin/bash\ncase " $* " in *" state "*) exit 1; esac\n{script}\n')
    path.chmod(0o755)
    return path


def command(world: World, lowlevel: Path, *arguments: str) -> list[str]:
    return [str(RUNTIME), *world.options(lowlevel), *arguments]


UNFIT = {
    "a file at /dev": lambda root: (shutil.rmtree(root / "dev"), (root / "dev").write_text("")),
    "a loop at /etc": lambda root: (root / "etc").symlink_to("etc"),
    "a link at /proc": lambda root: (shutil.rmtree(root / "proc"), (root / "proc").symlink_to("x")),
}


@pytest.mark.parametrize("subcommand", ["create", "run"])
@pytest.mark.parametrize("trick", UNFIT)
def test_rel_3_a_creation_that_fails_below_gives_its_share_back_before_it_ends(
    world: World, runtime: Path, trick: str, subcommand: str
) -> None:
    """crun calls no poststop hook for it."""
    UNFIT[trick](world.rootfs)
    world.write_config()
    config = world.edited()
    bind = {"destination": "/etc/x", "type": "bind", "source": "/etc/hosts", "options": ["bind"]}
    config["mounts"].append(bind)
    world.write_config(mounts=config["mounts"])
    container = name()
    done = world.runtime(subcommand, container, lowlevel=runtime)
    shares = world.shares()
    world.runtime("delete", "--force", container, lowlevel=runtime)
    assert done.returncode != 0, done
    assert shares == []


@pytest.mark.parametrize(
    ("subcommand", "manager"), [("create", {}), ("run", {}), ("run", {"NOTIFY_SOCKET": "/nowhere"})]
)
def test_rel_3_a_name_that_another_container_has_below_gives_the_share_back(
    world: World, runtime: Path, subcommand: str, manager: dict[str, str]
) -> None:
    """The low-level runtime knows a container of that name: one that was made without cgpu."""
    other = name()
    world.write_config(["OTHER=1"], "sleep 1000")
    done = world.runtime("create", other, lowlevel=runtime)
    assert done.returncode == 0, done
    try:
        world.write_config()
        done = world.runtime(subcommand, other, lowlevel=runtime, env={**os.environ, **manager})
        assert "exist" in done.stderr, done
        assert done.returncode != 0
        assert world.shares() == []
        assert world.runtime("state", other, lowlevel=runtime).returncode == 0
    finally:
        world.runtime("delete", "--force", other, lowlevel=runtime)


@pytest.mark.parametrize("ours", [True, False])
def test_rel_3_a_container_that_takes_the_place_of_another_keeps_its_share(
    world: World, *, ours: bool
) -> None:
    """The other one is deleted between our look and the runtime's."""
    kept = world.runs / "c1"
    kept.mkdir()
    world.write_config()
    path = stub(world, f"mv {kept} {kept}.gone; mkdir {kept}" if ours else "exit 1")
    world.runtime("--root", str(world.runs), "create", "c1", lowlevel=path)
    assert world.shares() == (["c1"] if ours else [])


def test_rel_3_a_program_that_is_not_there_gives_the_share_back(
    world: World, runtime: Path
) -> None:
    world.write_config()
    process = {**world.edited()["process"], "args": ["/nowhere"]}
    world.write_config(process=process)
    assert world.runtime("run", name(), lowlevel=runtime).returncode != 0
    assert world.shares() == []


@pytest.mark.parametrize("ours", [True, False])
def test_a_runtime_that_cannot_be_run_is_told_to_the_log_that_the_engine_reads(
    world: World, *, ours: bool
) -> None:
    """Of a container of ours the launcher's child told it to stderr alone."""
    broken = world.folder / "broken-runc"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    world.write_config(**({} if ours else {"env": []}))
    log = world.folder / "log.json"
    arguments = ("--log", str(log), "--log-format=json", "create", "c1")
    done = world.runtime(*arguments, lowlevel=broken)
    assert done.returncode == 1
    sentence = f"cgpu: {broken}: No such file or directory"
    assert done.stderr.splitlines() == [sentence]
    assert json.loads(log.read_text())["msg"] == sentence
    assert world.shares() == []


def test_a_share_is_not_given_back_where_the_name_has_gone_to_another_container(
    world: World,
) -> None:
    """The first one's share is removed, as its poststop hook does, and another is admitted."""
    world.write_config()
    path = world.state / "containers" / "c1"
    other = stub(world, f"rm -r {path} && mkdir {path} && cp FOLDER/record {path}/record.json")
    sleeper = subprocess.Popen(["sleep", "100"])
    try:
        started = Path(f"/proc/{sleeper.pid}/stat").read_text().rpartition(")")[2].split()[19]
        record = (
            f'{{"version":1,"id":"c1","kind":"container","owner":[{sleeper.pid},{started},null],'
            '"gpus":[[0,"GPU-00000000-0000-4000-8000-000000000000",1]],"weight":1}'
        )
        (world.folder / "record").write_text(record)
        assert world.runtime("create", "c1", lowlevel=other).returncode == 0
        assert world.shares() == ["c1"]
    finally:
        sleeper.kill()
        sleeper.wait()


@pytest.mark.parametrize("script", ["exit 0", "exit 42", "exit 255", "kill -9 $$", "kill $$"])
def test_the_end_of_the_runtime_is_what_the_caller_sees(world: World, script: str) -> None:
    world.write_config()
    alone = subprocess.run([stub(world, script)], check=False).returncode
    assert world.runtime("create", "c1", lowlevel=stub(world, script)).returncode == alone
    assert world.shares() == []


def test_the_runtime_has_every_descriptor_its_group_and_its_dispositions(world: World) -> None:
    """A socket that an engine passes down, an ignored signal, a blocked one."""
    world.write_config()
    report = "readlink /proc/self/fd/7; echo in $(ps -o pgid= $$); grep 'Sig[BIC]' /proc/$$/status"
    probe = world.folder / "probe.py"
    probe.write_text(
        "import os, signal, sys\n"
        "os.dup2(os.open('/etc/hosts', os.O_RDONLY), 7, inheritable=True)\n"
        "signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])\n"
        "os.setpgid(0, 0)\n"
        "print(os.getpid(), flush=True)\n"
        "os.execv(sys.argv[1], sys.argv[1:])\n"
    )
    path = stub(world, f"{{ {report}; }} > FOLDER/seen")
    seen = []
    for argv in ([str(path)], command(world, path, "create", "c1")):
        done = subprocess.run(
            [sys.executable, "-I", str(probe), *argv], cwd=world.bundle, check=False,
            capture_output=True, text=True, timeout=SECONDS,
        )  # fmt: skip
        text = (world.folder / "seen").read_text()
        seen.append(text.replace(f"in {done.stdout.split()[0]}\n", "in its group\n"))
    assert "/etc/hosts" in seen[0]
    assert "in its group" in seen[0]
    assert seen[1] == seen[0]


def test_signals_reach_the_runtime_that_runs_in_the_foreground(world: World) -> None:
    world.write_config()
    script = (
        "trap 'echo term >> FOLDER/got' TERM; trap 'echo usr1 >> FOLDER/got' USR1\n"
        "trap 'echo winch >> FOLDER/got; exit 9' WINCH; touch FOLDER/ready\n"
        "while :; do sleep 0.05; done"
    )
    got = world.folder / "got"
    with subprocess.Popen(command(world, stub(world, script), "run", "c1"), cwd=world.bundle) as p:
        until((world.folder / "ready").exists)
        for number, word in ((signal.SIGTERM, "term"), (signal.SIGUSR1, "usr1")):
            p.send_signal(number)
            until(lambda word=word: got.exists() and word in got.read_text())
        p.send_signal(signal.SIGWINCH)
        assert p.wait(SECONDS) == 9
    assert got.read_text().split() == ["term", "usr1", "winch"]


def test_a_killed_launcher_takes_the_runtime_with_it(world: World) -> None:
    world.write_config()
    path = stub(world, "echo $$ > FOLDER/pid.new; mv FOLDER/pid.new FOLDER/pid; exec sleep 100")
    pid_file = world.folder / "pid"
    with subprocess.Popen(command(world, path, "run", "c1"), cwd=world.bundle) as process:
        until(pid_file.exists)
        process.kill()
    pid = int(pid_file.read_text())
    until(lambda: not Path(f"/proc/{pid}").exists())


def test_what_the_container_holds_open_is_held_by_nobody_else(world: World) -> None:
    """An engine reads the runtime's output to its end; the runtime here closes it and goes on."""
    world.write_config()
    path = stub(world, "exec >&- 2>&- <&-; touch FOLDER/closed; read < FOLDER/go")
    os.mkfifo(world.folder / "go")
    with subprocess.Popen(
        command(world, path, "create", "c1"), cwd=world.bundle,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.read() == b""
        assert process.poll() is None
        (world.folder / "go").write_text("\n")
        assert process.wait(SECONDS) == 0


def test_a_terminal_is_the_runtimes_and_its_keys_come_once(world: World) -> None:
    world.write_config()
    script = (  # bash does not run the trap of a signal that arrives while it enters `read`
        "trap 'echo interrupted >> FOLDER/got' INT; stty -echo; echo ready\n"
        "until [ -s FOLDER/got ]; do sleep 0.05; done\n"
        'read line; echo "read $line"; exit 3'
    )
    argv = command(world, stub(world, script), "run", "c1")
    child, terminal = pty.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored where tests run in the background
        os.chdir(world.bundle)
        os.execv(argv[0], argv)
    got, printed = world.folder / "got", b""
    while b"ready" not in printed:
        printed += os.read(terminal, 1000)
    os.write(terminal, b"\x03")
    until(got.exists)
    os.write(terminal, b"word\n")
    while b"read word" not in printed:
        printed += os.read(terminal, 1000)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert got.read_text() == "interrupted\n"
    os.close(terminal)


def test_a_job_that_a_shell_puts_aside_stops_and_goes_on(world: World) -> None:
    """Ctrl-Z stops the whole group; the shell learns it from the process that it started."""
    world.write_config()
    path = stub(world, "touch FOLDER/ready; while [ ! -e FOLDER/go ]; do sleep 0.05; done")
    with subprocess.Popen(
        command(world, path, "run", "c1"), cwd=world.bundle, process_group=0
    ) as process:
        until((world.folder / "ready").exists)
        os.killpg(process.pid, signal.SIGTSTP)
        changed, status = os.waitpid(process.pid, os.WUNTRACED)
        assert changed == process.pid
        assert os.WIFSTOPPED(status)
        os.killpg(process.pid, signal.SIGCONT)
        (world.folder / "go").touch()
        assert process.wait(SECONDS) == 0


def test_what_outlives_a_detached_runtime_goes_to_the_engines_shim(world: World) -> None:
    """A shim is a subreaper: the container's process becomes its child, and only that."""
    world.write_config()
    path = stub(world, "mkdir -p FOLDER/runs/c1; sleep 100 >&- 2>&- & echo $! > FOLDER/pid")
    shim = world.folder / "shim.py"
    shim.write_text(
        "import ctypes, os, subprocess, sys\n"
        "assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0\n"  # PR_SET_CHILD_SUBREAPER
        "subprocess.run(sys.argv[1:], check=True)\n"
        "print(open(f'/proc/self/task/{os.getpid()}/children').read())\n"
    )
    argv = command(world, path, "--root", str(world.runs), "create", "c1")
    done = subprocess.run(
        [sys.executable, "-I", str(shim), *argv], cwd=world.bundle, capture_output=True,
        text=True, check=False, timeout=SECONDS,
    )  # fmt: skip
    pid = (world.folder / "pid").read_text().strip()
    os.kill(int(pid), signal.SIGKILL)
    assert done.stdout.split() == [pid], done
    assert world.shares() == ["c1"]


def test_a_service_managers_process_is_the_runtime_itself(world: World) -> None:
    """systemd accepts NOTIFY_SOCKET messages only from the process that it started."""
    world.write_config()
    path = stub(world, "echo $$ > FOLDER/pid")
    for subcommand, same in (("run", True), ("create", False)):
        with subprocess.Popen(
            command(world, path, subcommand, f"c-{subcommand}"), cwd=world.bundle,
            env={"NOTIFY_SOCKET": "/nowhere"},
        ) as process:  # fmt: skip
            assert process.wait(SECONDS) == 0
        assert (int((world.folder / "pid").read_text()) == process.pid) is same


@pytest.mark.parametrize("subcommand", ["create", "run"])
def test_a_service_managers_sockets_are_the_runtimes(world: World, subcommand: str) -> None:
    """systemd names the process that they are for, and runc takes them only if that is its own."""
    world.write_config()
    path = stub(world, 'echo "$LISTEN_PID $$" > FOLDER/pids')
    activate = 'LISTEN_FDS=1 LISTEN_PID=$$ exec "$@"'
    words = ["sh", "-c", activate, "sh", *command(world, path, subcommand, "c1")]
    assert subprocess.run(words, cwd=world.bundle, timeout=SECONDS, check=False).returncode == 0
    meant, runtime = (world.folder / "pids").read_text().split()
    assert runtime == meant
