"""``cgpu demo`` leaves no process and no file behind, in whatever way it ends (CLI-9)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from lab.machine.servers import end_all, naming, serving
from lab.worlds.cgpu_run import World

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration

DEMO = [sys.executable, "-m", "cgpu_cli.main", "demo", "--nvidia-smi", ""]
# A line that it prints: while the first program starts, and while both compute.
MOMENTS = {"at once": "$ cgpu-run --mem 6/15", "computing": "launching kernels"}
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture
def temporary(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    end_all(tmp_path)


def started_and_seen(
    world: World, temporary: Path, moment: str, *before: str
) -> subprocess.Popen[str]:
    """The demonstration in a session of its own, by ``before``, once it has come to ``moment``."""
    process = subprocess.Popen(
        [*before, *DEMO, "--driver-dir", str(world.driver)],
        env=world.environment(TMPDIR=str(temporary)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert any(MOMENTS[moment] in line for line in iter(process.stdout.readline, ""))
    return process


def check_nothing_is_left(temporary: Path) -> None:
    assert serving(temporary) == []
    assert naming(temporary) == set()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_to_all_of_it_leaves_nothing(
    world: World, temporary: Path, moment: str, number: signal.Signals
) -> None:
    """As Ctrl-C in a terminal sends it."""
    process = started_and_seen(world, temporary, moment)
    os.killpg(process.pid, number)
    _, output = process.communicate(timeout=60)
    status = -number if number == signal.SIGINT else 128 + number
    assert (process.returncode, output) == (status, "")
    check_nothing_is_left(temporary)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_reader_that_goes_away_leaves_nothing(world: World, temporary: Path, moment: str) -> None:
    """As ``cgpu demo | head -3`` does."""
    process = started_and_seen(world, temporary, moment)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    output = process.stderr.read()
    assert (process.wait(60), output) == (-signal.SIGPIPE, "")
    check_nothing_is_left(temporary)


def test_its_own_end_leaves_nothing(world: World, temporary: Path) -> None:
    process = started_and_seen(world, temporary, "computing")
    output, wrong = process.communicate(timeout=200)
    assert wrong == ""
    assert output.endswith("All of it as it must be.\n")
    check_nothing_is_left(temporary)


def test_beside_a_session_it_is_refused_with_who_that_is(temporary: Path) -> None:
    """CLI-9."""
    world = World()
    with world.start("--mem", "9/15", "--", "sh", "-c", "echo started; read word") as session:
        assert session.stdout is not None
        assert session.stdout.readline() == "started\n"
        (name,) = world.sessions()
        places = ["--driver-dir", str(world.driver), *world.flags()]
        done = world.run_command([*DEMO, *places], env=world.environment(TMPDIR=str(temporary)))
        session.kill()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        f"cgpu: the demonstration needs all of GPU 0, which others share: session {name} (sh -c"
        f" echo started; read word, pid {session.pid}) holds 0MiB of its 9065MiB\n  end them"
    )


def test_signals_that_were_ignored_when_it_began_end_nothing(world: World, temporary: Path) -> None:
    """As ``nohup`` and a shell's background jobs want it."""
    before = ("env", "--ignore-signal=HUP", "--ignore-signal=INT", "--ignore-signal=QUIT")
    process = started_and_seen(world, temporary, "computing", *before)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        os.killpg(process.pid, number)
    output, wrong = process.communicate(timeout=200)
    assert wrong == ""
    assert output.endswith("All of it as it must be.\n")
    check_nothing_is_left(temporary)
