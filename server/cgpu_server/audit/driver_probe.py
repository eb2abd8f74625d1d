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
from typing import TYPE_CHECKING, NamedTuple

from cgpu_env import CgpuError
from cgpu_node.facts.discovery import start_probe

if TYPE_CHECKING:
    from collections.abc import Iterable

_PATIENCE_SECONDS = 10.0
_LARGEST_ANSWER = 1 << 22


class Reading(NamedTuple):
    """One GPU.

    Attributes:
        used_bytes: what is in use of it, without what the driver keeps for itself.
        holders: bytes by process of the host; None where the driver does not tell how much.
        utilisation: percent of its last second or less in which a kernel ran; None: not told.
        busy: the same by process of the host, without idle ones; None: not told, or not asked.
    """

    used_bytes: int
    holders: dict[int, int | None]
    utilisation: int | None = None
    busy: dict[int, int] | None = None


class Gauge:
    """Asks the driver in ``folder``, and waits ``patience`` seconds for each answer."""

    def __init__(self, folder: str, patience: float = _PATIENCE_SECONDS) -> None:
        self.folder, self.patience = folder, patience
        self._child: subprocess.Popen[bytes] | None = None
        self._has_failed_asked = False

    def read(self, wanted: Iterable[str] = ()) -> dict[str, Reading]:
        """Each GPU by UUID.

        Args:
            wanted: UUIDs of those of which ``busy`` is wanted. Nobody needs it as much as the rest:
                if a driver has failed when it was asked for it, it is not asked again.

        Raises:
            CgpuError: the driver does not answer, or not in time.
        """
        asked = () if self._has_failed_asked else tuple(wanted)
        try:
            return _readings(self._ask(asked))
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._has_failed_asked |= bool(asked)
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

    def _ask(self, wanted: Iterable[str]) -> bytes:
        if self._child is None:
            self._child = start_probe("holdings", self.folder, subprocess.PIPE)
        assert self._child.stdin is not None  # noqa: S101 (a pipe)
        try:
            os.write(self._child.stdin.fileno(), f"{' '.join(wanted)}\n".encode())
        except BrokenPipeError:
            raise OSError(_last_words(self._child)) from None
        return self._line(self._child)

    def _line(self, child: subprocess.Popen[bytes]) -> bytes:
        assert child.stdout is not None  # noqa: S101 (a pipe)
        deadline, answer = time.monotonic() + self.patience, b""
        poll = select.poll()
        poll.register(child.stdout, select.POLLIN)
        while not answer.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise TimeoutError(f"no answer within {self.patience:g} s")
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
        gpu["uuid"]: Reading(
            gpu["used_bytes"],
            dict(gpu["holders"]),
            gpu["utilisation"],
            None if gpu["busy"] is None else dict(gpu["busy"]),
        )
        for gpu in json.loads(answer)
    }
