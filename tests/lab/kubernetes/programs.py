"""The programs of a control plane: how they start, and that they end."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

_GRACE = 5.0  # seconds to end in, before a program is killed


def free_port() -> int:
    """A TCP port of loopback that nobody has now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextlib.contextmanager
def running(log: Path, command: Sequence[str | Path]) -> Iterator[subprocess.Popen[bytes]]:
    """A program with its output in ``log``, which ends with the block, or with the test run.

    The kernel kills the program when the thread that started it ends. So only the main thread may.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(f"{command[0]} must be started by the main thread, which outlives it")
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a program, and wait until it has ended."""
    process.terminate()
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def tail(log: Path, lines: int = 20) -> str:
    """The end of a program's output."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else ""
