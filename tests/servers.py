"""Servers that tests start, or that containers and programs under test start by themselves."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from pathlib import Path

_PROGRAMS = {b"cgpud", b"cgpu_server.main"}  # as the hook starts it, and as a module


def serving(folder: Path) -> list[int]:
    """The process ids of the servers whose state directory is ``folder`` or below it."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"--state-dir" in words and _PROGRAMS.intersection(words):
                state = Path(os.fsdecode(words[words.index(b"--state-dir") + 1]))
                if state.is_relative_to(folder):
                    found.append(int(entry.name))
    return found


def end_servers(folder: Path) -> None:
    """End the servers below ``folder``, and wait until they are gone."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + 5
        for pid in serving(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        while serving(folder) and time.monotonic() < deadline:
            time.sleep(0.02)


class StandIn:
    """Listens where a server would, so that nobody starts one, and counts who calls."""

    def __init__(self, state: Path) -> None:
        self._end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        folder = os.open(state, os.O_PATH)
        self._end.bind(f"/proc/self/fd/{folder}/cgpud.sock")
        os.close(folder)
        self._end.listen(64)
        self._end.settimeout(0)

    def calls(self) -> int:
        """How many have connected since the last time."""
        count = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                self._end.accept()[0].close()
                count += 1
        return count
