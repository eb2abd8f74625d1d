"""What the driver says of who holds memory, asked through a child: the driver may hang, or crash.

While the child lives the driver is in use; ``close`` ends it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import time
from typing import NamedTuple

from cgpu_env import CgpuError
from cgpu_hook.discovery import start_probe

_PATIENCE_SECONDS = 10.0
_LARGEST_ANSWER = 1 << 22


class Reading(NamedTuple):
    """One GPU.

    Attributes:
        used_bytes: what is in use of it, without what the driver keeps for itself.
        holders: bytes by process of the host; None where the driver does not tell how much.
        utilisation: percent of its last second or less in which a kernel ran; None: not told.
    """

    used_bytes: int
    holders: dict[int, int | None]
    utilisation: int | None = None


class Gauge:
    """Asks the driver in ``folder``."""

    def __init__(self, folder: str, patience: float = _PATIENCE_SECONDS) -> None:
        self.folder, self._patience = folder, patience
        self._child: subprocess.Popen[bytes] | None = None

    def read(self) -> dict[str, Reading]:
        """Each GPU by UUID.

        Raises:
            CgpuError: the driver does not answer, or not in time.
        """
        try:
            return _readings(self._ask())
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.close()
            raise CgpuError(f"the driver does not say who holds memory: {error}") from None

    def interrupt(self) -> None:
        """Let ``read`` fail now, for another thread."""
        child = self._child
        if child is not None:
            child.kill()

    def close(self) -> None:
        """Let go of the driver."""
        child, self._child = self._child, None
        if child is None:
            return
        for end in (child.stdin, child.stdout, child.stderr):
            if end is not None:
                end.close()
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel
            child.wait(1)

    def _ask(self) -> bytes:
        if self._child is None:
            self._child = start_probe("holdings", self.folder, subprocess.PIPE)
        assert self._child.stdin is not None  # noqa: S101 (a pipe)
        try:
            os.write(self._child.stdin.fileno(), b"\n")
        except BrokenPipeError:
            raise OSError(_last_words(self._child)) from None
        return self._line(self._child)

    def _line(self, child: subprocess.Popen[bytes]) -> bytes:
        assert child.stdout is not None  # noqa: S101 (a pipe)
        deadline, answer = time.monotonic() + self._patience, b""
        poll = select.poll()
        poll.register(child.stdout, select.POLLIN)
        while not answer.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise TimeoutError(f"no answer within {self._patience:g} s")
            more = os.read(child.stdout.fileno(), 1 << 16)
            if not more or len(answer) > _LARGEST_ANSWER:
                raise OSError(_last_words(child))
            answer += more
        return answer


def _last_words(child: subprocess.Popen[bytes]) -> str:
    assert child.stderr is not None  # noqa: S101 (a pipe)
    try:
        status = child.wait(1)
    except subprocess.TimeoutExpired:
        return "it has ended its answers"
    if status < 0:
        return f"it died by signal {-status}"
    lines = child.stderr.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit status {status}"


def _readings(answer: bytes) -> dict[str, Reading]:
    return {
        gpu["uuid"]: Reading(gpu["used_bytes"], dict(gpu["holders"]), gpu["utilisation"])
        for gpu in json.loads(answer)
    }
