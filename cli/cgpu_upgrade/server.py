"""The node's server, started anew from an environment."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING

from cgpu_env import CgpuError
from cgpu_hook import client, server
from cgpu_install.engines import SERVICE

if TYPE_CHECKING:
    from collections.abc import Sequence

_SECONDS = 30.0
_AGAIN_SECONDS = 3.0  # a container made meanwhile may have started another one, which ends soon
_POLL_SECONDS = 0.1
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
_NAMES = (b"cgpud", b"cgpu_server.main")


def restart(state_dir: str, python: Sequence[str], release: str, *, wanted: bool) -> int | None:
    """Let a server of ``release`` take the place of the one that runs.

    Args:
        state_dir: what it serves.
        python: the command of the interpreter that has that release.
        release: the server's, from then on.
        wanted: whether to start one where none runs.

    Returns:
        Its process id; None where none runs and none is wanted.

    Raises:
        CgpuError: it does not come up.
    """
    service = _is_service()
    listening = os.path.isdir(state_dir) and server.is_listening(state_dir)
    if not service and not listening and not wanted:
        return None
    before = status(state_dir)[0] if listening else None
    words = [*python, "-m", "cgpu_server.main", *_arguments(state_dir, listening=listening)]
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        _restart_service() if service else _start(words)
        again = time.monotonic() + _AGAIN_SECONDS
        while time.monotonic() < again:
            pid, running = status(state_dir)
            if running == release and pid != before:
                return pid
            time.sleep(_POLL_SECONDS)
    raise CgpuError(
        f"cgpud {release} does not come up within {_SECONDS:g} s",
        hint=f"journalctl -u {SERVICE}" if service else f"see {state_dir}/{server.LOG}",
    )


def status(state_dir: str) -> tuple[int | None, str | None]:
    """Process id and release of the server that answers; None and None where none does."""
    try:
        answer = client.ask(state_dir, {"request": "status"})
        return answer["pid"], answer["node"]["version"]
    except (CgpuError, KeyError, OSError):
        return None, None


def _arguments(state_dir: str, *, listening: bool) -> list[str]:
    """Those of the server that runs, for it may have been told what no file says."""
    words = _command(state_dir) if listening else []
    known = next((i for i, word in enumerate(words) if os.path.basename(word) in _NAMES), None)
    given = [os.fsdecode(word) for word in words[known + 1 :]] if known is not None else []
    if "--state-dir" not in given:
        given += ["--state-dir", state_dir]
    if not listening:
        given += ["--idle-exit", str(server.IDLE_SECONDS)]
    if "--log" not in given:
        given += ["--log", f"{state_dir}/{server.LOG}"]
    return given if "--replace" in given else [*given, "--replace"]


def _command(state_dir: str) -> list[bytes]:
    try:
        with open(f"{state_dir}/{server.LOCK}", encoding="ascii") as file:
            pid = int(file.read())
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().split(b"\0")[:-1]
    except (OSError, ValueError):
        return []


def _start(words: Sequence[str]) -> None:
    subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
        env=_ENVIRONMENT,
    )


def _is_service() -> bool:
    if not os.path.isdir("/run/systemd/system"):
        return False
    done = subprocess.run(["systemctl", "is-active", "--quiet", SERVICE], check=False)  # noqa: S607
    return done.returncode == 0


def _restart_service() -> None:
    for words in (["daemon-reload"], ["restart", SERVICE]):
        subprocess.run(["systemctl", *words], check=False)  # noqa: S607 (of every system with it)
