"""Servers that tests start, or that containers and programs under test start by themselves."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from pathlib import Path

_PROGRAMS = {b"cgpud", b"cgpu_server.main"}  # as the hook starts it, and as a module
_PATIENCE_MS = 5000
_EXEC_TRIES = 1000  # a millisecond each
_ROUNDS = 12  # a minute, if each waits in vain


def serving(folder: Path) -> list[int]:
    """The process ids of the servers whose state directory is ``folder`` or below it."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            words = _command_line(entry).split(b"\0")
            if b"--state-dir" in words and _PROGRAMS.intersection(words):
                state = Path(os.fsdecode(words[words.index(b"--state-dir") + 1]))
                if state.is_relative_to(folder):
                    found.append(int(entry.name))
    return found


def end(pid: int, number: signal.Signals = signal.SIGTERM) -> bool:
    """Send a signal, and wait until the process is gone; False if it stays.

    Its command line goes first, its files with its last thread: only then is a file system that it
    used free.
    """
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, number)
        ended = select.poll()
        ended.register(process, select.POLLIN)
        return bool(ended.poll(_PATIENCE_MS))
    finally:
        os.close(process)


def end_servers(folder: Path) -> None:
    """End the servers below ``folder``, and wait until they are gone."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in serving(folder):
            end(pid, number)


def end_all(folder: Path) -> None:
    """End the servers below ``folder``, and before them all others that name a path there.

    The keeper of a session is one: it may not have started its server yet, which would make the
    folder anew.

    Raises:
        RuntimeError: some cannot be killed.
    """
    for _ in range(_ROUNDS):
        pids = naming(folder)
        if not pids:
            return
        servers = {*serving(folder)}
        for pid in pids - servers:
            end(pid, signal.SIGKILL)
        for pid in servers:
            if not end(pid):
                end(pid, signal.SIGKILL)
    raise RuntimeError(f"{folder} is in use by processes that SIGKILL does not end: {sorted(pids)}")


def naming(folder: Path) -> set[int]:
    """The processes whose command line names something below ``folder``."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if os.fsencode(folder) + b"/" in _command_line(process):
                found.add(int(process.name))
    return found


def _command_line(process: Path) -> bytes:
    """In the middle of execve a process has a program, but no command line yet."""
    for _ in range(_EXEC_TRIES):
        line = (process / "cmdline").read_bytes()
        if line or not (process / "exe").exists():  # the kernel's threads and zombies have none
            break
        time.sleep(0.001)
    return line


class StandIn:
    """Listens where a server would, so that none is started, and counts connections."""

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
