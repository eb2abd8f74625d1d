"""Whoever ends the servers of a test finds nothing of theirs in use afterwards."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from lab.machine.servers import end_servers

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
