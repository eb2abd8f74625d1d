"""The tests' own engines never outlive the test run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lab.containers import enclosure as module
from lab.containers.enclosure import CGROUPS, PREFIX, wait_until

pytestmark = pytest.mark.system
RUN = """
import enclosure, pathlib, sys
made = enclosure.Enclosure()
made.start("sleep", "1000")
for top in enclosure.CGROUPS.glob("*/cgroup.procs"):
    (top.parent / made.cgroup / "child").mkdir(parents=True)
print(made.pid, flush=True)
sys.stdin.read()
"""


def _interrupted_run(number: int) -> tuple[int, int]:
    """A run that ``number`` ends: its pid and that of the first process in its enclosure."""
    tests = str(Path(module.__file__).parent)
    with subprocess.Popen(
        [sys.executable, "-c", RUN],
        env={**os.environ, "PYTHONPATH": tests},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as run:
        assert run.stdout is not None
        inside = int(run.stdout.readline())
        run.send_signal(number)
    return run.pid, inside


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_run_ended_by_a_signal_leaves_no_process(number: int) -> None:
    _, inside = _interrupted_run(number)
    wait_until(lambda: not Path(f"/proc/{inside}").exists(), "the enclosure has ended")


def test_the_next_run_removes_what_a_killed_one_left() -> None:
    pid, inside = _interrupted_run(signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{inside}").exists(), "the enclosure has ended")
    name = f"{PREFIX}{pid}"
    folder = Path(tempfile.gettempdir(), name)
    assert folder.exists()
    module.remove_stale()
    assert not folder.exists()
    assert not list(CGROUPS.glob(f"*/{name}"))
