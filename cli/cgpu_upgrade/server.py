"""Restarts the node's server from an environment."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Sequence
from typing import NamedTuple

from cgpu_env import CgpuError
from cgpu_install.engines import SERVICE
from cgpu_node import client, server
from cgpu_node.shares.liveness import start_time

_TIMES = 3
_SECONDS = 10.0  # for each
_POLL_SECONDS = 0.05
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
_NAMES = (b"cgpud", b"cgpu_server.main")


class Running(NamedTuple):
    """The running server.

    Attributes:
        pid: its process id; None if none runs.
        release: the release that it runs.
        arguments: its command line, which may have settings that no file has.
        is_service: whether systemd manages it.
    """

    pid: int | None
    release: str | None
    arguments: list[str]
    is_service: bool


def find_running(state_dir: str) -> Running:
    """Return the server of ``state_dir``."""
    listening = os.path.isdir(state_dir) and server.is_listening(state_dir)
    pid, release = query_status(state_dir) if listening else (None, None)
    words = _read_command(state_dir) if listening else []
    known = next((i for i, word in enumerate(words) if os.path.basename(word) in _NAMES), None)
    given = [os.fsdecode(word) for word in words[known + 1 :]] if known is not None else []
    return Running(pid, release, given, _is_service())


def restart_server(
    state_dir: str, python: Sequence[str], release: str, before: Running, *, wanted: bool
) -> int | None:
    """Replace the running server by one of ``release``.

    Args:
        state_dir: the state directory that it serves.
        python: the command of the interpreter that has that release.
        release: the new server's release.
        before: the server that ran when the upgrade began.
        wanted: whether to start a server if none ran.

    Returns:
        The new server's process id; None if none ran and none is wanted.

    Raises:
        CgpuError: it does not start.
    """
    if before.pid is None and not before.is_service and not wanted:
        return None
    words = [*python, "-m", "cgpu_server.main", *_build_arguments(state_dir, before)]
    last = query_status(state_dir)[0]
    for _ in range(_TIMES):  # a container that was made meanwhile may have started another one
        started = None
        if before.is_service:
            _restart_service()
        else:
            started = _start_server(words)
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline and not _has_failed(started):
            pid, found = query_status(state_dir)
            if found == release and pid != last:
                return pid
            time.sleep(_POLL_SECONDS)
    raise CgpuError(
        f"cgpud {release} does not come up",
        hint=f"journalctl -u {SERVICE}" if before.is_service else f"see {state_dir}/{server.LOG}",
    )


def end_server(state_dir: str, pid: int) -> bool:
    """End the server of ``state_dir``, process ``pid``, and wait. Return whether it has ended."""
    with contextlib.suppress(CgpuError):  # it may be on its way already
        client.send_request(state_dir, {"request": "stop"})
    deadline = time.monotonic() + _SECONDS
    while start_time(pid) is not None and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return start_time(pid) is None


def query_status(state_dir: str) -> tuple[int | None, str | None]:
    """Return process id and release of the server that answers; None and None if none does."""
    try:
        answer = client.send_request(state_dir, {"request": "status"})
        return answer["pid"], answer["node"]["version"]
    except (CgpuError, KeyError, OSError):
        return None, None


def _build_arguments(state_dir: str, before: Running) -> list[str]:
    given = list(before.arguments)
    if "--state-dir" not in given:
        given += ["--state-dir", state_dir]
    if before.pid is None:
        given += ["--idle-exit", str(server.IDLE_SECONDS)]
    if "--log" not in given:
        given += ["--log", f"{state_dir}/{server.LOG}"]
    return given if "--replace" in given else [*given, "--replace"]


def _read_command(state_dir: str) -> list[bytes]:
    try:
        with open(f"{state_dir}/{server.LOCK}", encoding="ascii") as file:
            pid = int(file.read())
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().split(b"\0")[:-1]
    except (OSError, ValueError):
        return []


def _start_server(words: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
        env=_ENVIRONMENT,
    )


def _has_failed(started: subprocess.Popen[bytes] | None) -> bool:
    return started is not None and started.poll() not in {None, 0}


def _is_service() -> bool:
    if not os.path.isdir("/run/systemd/system"):
        return False
    done = subprocess.run(["systemctl", "is-active", "--quiet", SERVICE], check=False)  # noqa: S607
    return done.returncode == 0


def _restart_service() -> None:
    for words in (["daemon-reload"], ["restart", SERVICE]):
        subprocess.run(["systemctl", *words], check=False)  # noqa: S607 (of every system with it)
