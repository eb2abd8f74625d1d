"""Whoever ends the servers of a test finds nothing of theirs in use afterwards."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from lab.machine import servers
from lab.machine.servers import end_all, end_servers

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit

# On SIGTERM its first thread ends, and with that its command line; another one ends later.
SLOW_END = """
import ctypes, fcntl, os, signal, sys, threading, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
held = open(sys.argv[3] + "/held", "w")
fcntl.flock(held, fcntl.LOCK_EX)
told = threading.Event()
def end():
    told.wait()
    time.sleep(0.5)
    os._exit(0)
threading.Thread(target=end).start()
print(flush=True)
signal.sigwait({signal.SIGTERM})
told.set()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_server_is_gone_when_its_last_thread_has_let_go_of_its_files(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SLOW_END, "cgpud", "--state-dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        end_servers(tmp_path)
        with (tmp_path / "held").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert process.returncode == 0


# As the keeper of a session that has just begun, whose server would make its folder.
LATE = "import os, sys; sys.stdin.read(); os.makedirs(sys.argv[1])"


def test_nobody_makes_a_folder_anew_after_its_removal(tmp_path: Path) -> None:
    state = tmp_path / "cgpu"
    command = [sys.executable, "-c", LATE, str(state)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as keeper:
        end_all(tmp_path)
    assert keeper.returncode == -signal.SIGKILL
    assert not state.exists()


def test_a_process_that_cannot_be_killed_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As one in an uninterruptible call."""
    monkeypatch.setattr(servers, "end", lambda *_: False)
    command = [sys.executable, "-c", "input()", tmp_path / "x"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as stays:
        try:
            with pytest.raises(RuntimeError, match=rf"SIGKILL does not end: \[{stays.pid}\]$"):
                end_all(tmp_path)
        finally:
            stays.kill()
