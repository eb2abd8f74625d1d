"""Programs end with a status and a sentence, whatever is done to them (CLI-9)."""

from __future__ import annotations

import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from cgpu_env.version import VERSION
from lab.runs.children import Child
from lab.worlds.cgpu_run import World

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.integration

MODULES = {
    "cgpu": "cgpu_cli.main",
    "cgpu-run": "cgpu_cli.run",
    "cgpu-smi": "cgpu_cli.smi",
    "cgpud": "cgpu_server.main",
    "cgpu_sim": "cgpu_sim",
}
PROGRAMS = [name for name in MODULES if name != "cgpu_sim"]
PRINTING = [
    "cgpu --help",
    "cgpu --version",
    "cgpu help set",
    "cgpu get",
    "cgpu ls",
    "cgpu doctor",
    "cgpu completion bash",
    "cgpu-smi",
    "cgpu-smi -q",
    "cgpu-smi -L",
    "cgpu-smi --json",
    "cgpu-smi --help",
    "cgpu-smi --version",
    "cgpu-run --help",
    "cgpu-run --version",
    "cgpud --help",
    "cgpud --version",
    "cgpu_sim --help",
]
# What each imports last; an interrupt meets it there.
LATE = {
    "cgpu get": "cgpu_cli.commands.set",
    "cgpu-smi": "cgpu_cli.show.fields",
    "cgpu-run --help": "cgpu_cli.namespaces",
    "cgpud --help": "cgpu_node.paths",
}
INTERRUPTED_AT = """
import os, signal, sys
def audit(event, arguments):
    if event == "import" and arguments[0] == {at!r}:
        os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(audit)
sys.argv = {words!r}
from {module} import main
main()
"""
# Counted from where Python has found the first line of ours.
INTERRUPTED_NTH = """
import os, signal, sys
left = {nth}
def audit(event, arguments):
    global left
    if event == "import" and "cgpu_entry" in sys.modules:
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(audit)
sys.argv = {words!r}
from cgpu_entry import {function}
{function}()
"""
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.fixture(scope="module")
def world() -> World:
    return World()


def words_of(world: World, typed: str) -> list[str]:
    """The command line, on this machine's driver and state."""
    name, *rest = typed.split()
    command = [sys.executable, "-m", MODULES[name], *rest]
    if not {"--help", "help", "completion", "--version"} & set(rest):
        command += ["--driver-dir", str(world.driver), "--state-dir", str(world.state)]
    return command


def end(
    world: World, command: Sequence[str], stdout: int, **variables: str
) -> subprocess.CompletedProcess[str]:
    environment = world.environment(**variables)
    return subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, env=environment
    )


def unbuffered(typed: str) -> str:
    """On for what argparse prints, which ignores that it fails; otherwise it fails at the end."""
    return "1" if "help" in typed or "version" in typed else ""


def name_of(typed: str) -> str:
    """What a program calls itself."""
    name = typed.split(maxsplit=1)[0]
    return "python -m cgpu_sim" if name == "cgpu_sim" else name


@pytest.mark.parametrize("typed", PRINTING)
def test_a_full_disk_is_one_sentence(world: World, typed: str) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    done = end(world, words_of(world, typed), full, PYTHONUNBUFFERED=unbuffered(typed))
    os.close(full)
    assert done.returncode == 2
    assert done.stderr == (
        f"{name_of(typed)}: cannot write the output or a file: No space left on device\n"
        "  free some space there, and run it again\n"
    )


@pytest.mark.parametrize("typed", PRINTING)
def test_a_closed_output_is_one_sentence(world: World, typed: str) -> None:
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *words_of(world, typed)]
    done = end(world, closed, subprocess.PIPE)
    printed = f"{name_of(typed)}: cannot write the output: standard output is closed\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", printed)


def test_a_program_runs_also_with_a_closed_output(world: World) -> None:
    """It is for the program to say that it cannot write."""
    running = world.command(*world.flags(), "--mem", "6/15", "--", "sh", "-c", "echo up || exit 7")
    done = end(world, ["sh", "-c", 'exec "$@" >&-', "sh", *running], subprocess.PIPE)
    assert done.returncode == 7
    assert "cgpu-run" not in done.stderr


@pytest.mark.parametrize("typed", PRINTING)
def test_a_reader_that_goes_away_ends_it_quietly(world: World, typed: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = end(world, words_of(world, typed), writer, PYTHONUNBUFFERED=unbuffered(typed))
    os.close(writer)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")


@pytest.mark.parametrize("typed", LATE)
def test_an_interrupt_while_it_starts_is_silent(world: World, typed: str) -> None:
    name = typed.split(maxsplit=1)[0]
    script = INTERRUPTED_AT.format(at=LATE[typed], words=typed.split(), module=MODULES[name])
    done = end(world, [sys.executable, "-c", script], subprocess.DEVNULL)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def interrupted_at_import(nth: int, words: list[str]) -> list[str]:
    """What the program in ``bin`` does, with a signal to itself at its ``nth`` import."""
    function = words[0].replace("-", "_")
    script = INTERRUPTED_NTH.format(nth=nth, words=words, function=function)
    return [sys.executable, "-c", script]


@pytest.mark.exact  # who counts lines imports, too
@pytest.mark.parametrize("typed", LATE)
def test_an_interrupt_at_any_import_of_a_program_is_silent(world: World, typed: str) -> None:
    for nth in (1, 2, 3, 5, 8, 13):
        done = end(world, interrupted_at_import(nth, typed.split()), subprocess.DEVNULL)
        assert (done.returncode, done.stderr) == (-signal.SIGINT, ""), nth


def test_a_program_ignores_an_interrupt_where_it_was_told_to(world: World) -> None:
    """As a shell without job control tells what it starts in the background."""
    started = interrupted_at_import(1, ["cgpu", "--version"])
    done = end(world, ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *started], subprocess.PIPE)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"cgpu {VERSION}\n", "")


def test_an_interrupt_while_a_server_is_asked_is_silent(world: World) -> None:
    """A shell says 130, and stops its loop."""
    with socket.socket(socket.AF_UNIX) as mute:
        folder = world.folder / "mute"
        folder.mkdir(mode=0o711)
        mute.bind(str(folder / "cgpud.sock"))
        mute.listen()
        asking = [sys.executable, "-m", "cgpu_cli.main", "get", "--state-dir", str(folder)]
        child = Child(asking, world.environment())
        taken, _ = mute.accept()
        assert taken.recv(1)
        child.send_signal(signal.SIGINT)
        _, shown = child.communicate(timeout=60)
        taken.close()
    assert (child.returncode, shown) == (-signal.SIGINT, "")


def test_a_name_that_the_locale_cannot_show_is_shown_otherwise(world: World) -> None:
    ready = ["sh", "-c", "echo up; exec sleep 60", "größe.py"]
    process = world.start("--mem", "6/15", "--", *ready)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    for typed in ("cgpu-smi", "cgpu-smi -q", "cgpu-smi --json", "cgpu get", "cgpu doctor"):
        done = end(world, words_of(world, typed), subprocess.PIPE, **ASCII)
        assert (done.returncode, done.stderr) == (0, "") or typed == "cgpu doctor"
        assert r"gr\xf6\xdfe" in done.stdout or typed != "cgpu-smi -q"
        assert done.stdout.isascii()
    process.kill()


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_says_its_version(world: World, name: str) -> None:
    done = end(world, words_of(world, f"{name} --version"), subprocess.PIPE)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{name} {VERSION}\n", "")


def test_help_tells_what_a_command_does(world: World) -> None:
    asked = {
        words: end(world, words_of(world, f"cgpu {words}"), subprocess.PIPE)
        for words in ("help", "--help", "help set", "set --help", "help nothing")
    }
    assert asked["help"].stdout == asked["--help"].stdout
    assert "  doctor " in asked["help"].stdout
    assert asked["help set"].stdout == asked["set --help"].stdout
    assert asked["help set"].returncode == 0
    assert asked["help nothing"].returncode == 2


@pytest.mark.parametrize(
    ("how", "status"), [(b"q", 0), (b"\x03", 0), (signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_top_gives_the_terminal_back_however_it_ends(
    world: World, how: bytes | signal.Signals, status: int
) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        words_of(world, "cgpu top"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=world.environment(TERM="xterm-256color"),
        start_new_session=True,
    )
    os.close(theirs)
    printed = _until(ours, b"Container")  # the head of the table: its keys are heard by now
    if isinstance(how, bytes):
        os.write(ours, how)
    else:
        process.send_signal(how)
    printed = _until(ours, b"\x1b[?1049l")  # out of the alternate screen
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        printed += _some(ours)
    os.close(ours)
    assert process.poll() == status
    assert b"Traceback" not in printed


def test_top_ends_when_its_terminal_is_gone(world: World) -> None:
    """Nobody sends SIGHUP where the terminal does not control the session."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        words_of(world, "cgpu top"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=world.environment(TERM="xterm-256color"),
        start_new_session=True,
    )
    os.close(theirs)
    _until(ours, b"Container")
    os.close(ours)
    try:
        assert process.wait(60) == 128 + signal.SIGHUP
    finally:
        process.kill()
        process.wait()


def _until(end: int, what: bytes) -> bytes:
    found, deadline = b"", time.monotonic() + 60
    while what not in found:
        assert time.monotonic() < deadline, found
        found += _some(end)
    return found


def _some(end: int) -> bytes:
    if not select.select([end], [], [], 0.1)[0]:
        return b""
    try:
        return os.read(end, 1 << 16)
    except OSError:  # the other side is closed
        return b""
