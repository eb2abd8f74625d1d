"""Folders of tests that were killed go with the next that is made."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lab.machine import folders

pytestmark = pytest.mark.unit

# It makes a folder in which something runs that outlives it.
RUN = """
import subprocess, sys
from lab.machine import folders

folder = folders.make("cgpu-x-")
child = subprocess.Popen([sys.executable, "-c", "input()", folder / "state"], stdin=sys.stdin)
print(folder, child.pid, flush=True)
child.wait()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_what_a_killed_run_has_left_goes_and_what_others_use_stays(temporary: Path) -> None:
    environment = {"TMPDIR": str(temporary), "PYTHONPATH": ":".join(filter(None, sys.path))}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": environment}
    with (
        subprocess.Popen([sys.executable, "-c", RUN], text=True, **pipes) as killed,
        subprocess.Popen([sys.executable, "-c", RUN], text=True, **pipes) as living,
    ):
        left, child = first_words(killed)
        kept, _ = first_words(living)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert Path(left).exists()
        assert Path("/proc", child).exists()
        strange = temporary / "cgpu-x-mine-1"
        strange.mkdir()
        new = folders.make("cgpu-x-")
        assert {*temporary.iterdir()} == {Path(kept), strange, new}
        assert not Path("/proc", child, "exe").exists()
        folders.remove(Path(kept))
        assert living.wait() == 0


def first_words(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


def test_other_users_can_enter_it(temporary: Path) -> None:
    assert folders.make("cgpu-x-").stat().st_mode & 0o777 == 0o755
    assert len([*temporary.iterdir()]) == 1
