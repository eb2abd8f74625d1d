"""Asks the driver who holds memory, through a child process, because the driver may hang or crash.

The driver is in use while the child lives; ``close`` ends the child.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from cgpu_env import CgpuError, Gpu
from cgpu_node.facts.discovery import start_probe

_PATIENCE_SECONDS = 10.0
_RENEWAL_SECONDS = 30.0  # only a driver that starts anew finds that a lost GPU is back
_LARGEST_ANSWER = 1 << 22


class Reading(NamedTuple):
    """The driver's figures of one GPU.

    Attributes:
        used_bytes: what is in use, without the driver's own memory.
        holders: bytes by host pid; None if the driver does not report them.
        utilisation: percent of the last second or less in which a kernel ran; None: not reported.
        busy: the same by host pid, without idle processes; None: not reported, or not asked for.
    """

    used_bytes: int
    holders: dict[int, int | None]
    utilisation: int | None = None
    busy: dict[int, int] | None = None


class DriverProbe:
    """Asks the driver in ``folder``, and waits ``patience`` seconds for each answer.

    Attributes:
        lost: the GPUs that did not answer the last time.
    """

    def __init__(self, folder: str, patience: float = _PATIENCE_SECONDS) -> None:
        self.folder, self.patience = folder, patience
        self.lost: tuple[Gpu, ...] = ()
        self._begun = 0.0
        self._child: subprocess.Popen[bytes] | None = None
        self._killed: list[subprocess.Popen[bytes]] = []
        self._failed_on_busy = False

    def read(self, wanted: Iterable[str] = ()) -> dict[str, Reading]:
        """Read each GPU, by UUID.

        Args:
            wanted: UUIDs of the GPUs for which ``busy`` is read. It is less important than the
                rest: if the driver fails once when asked for it, it is not asked again before
                ``close``.

        Raises:
            CgpuError: the driver does not answer, or not in time.
        """
        asked = () if self._failed_on_busy else tuple(wanted)
        self._reap()
        try:
            answer = json.loads(self._ask_child(asked))
            self.lost = tuple(Gpu(total_bytes=0, **gpu) for gpu in answer["lost"])
            readings = _parse_readings(answer["gpus"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            failed_on_busy = self._failed_on_busy or bool(asked)
            self.close()
            self._failed_on_busy = failed_on_busy
            raise CgpuError(f"the driver does not say who holds memory: {error}") from None
        if self.lost and time.monotonic() - self._begun > _RENEWAL_SECONDS:
            self.close()
        return readings

    def interrupt(self) -> None:
        """Make ``read`` fail now; any thread may call this."""
        child = self._child
        if child is not None:
            child.kill()

    def close(self) -> None:
        """Release the driver. If a child does not end within a second, it is reaped later."""
        child, self._child = self._child, None
        self._failed_on_busy = False
        if child is not None:
            for end in (child.stdin, child.stdout, child.stderr):
                if end is not None:
                    end.close()
            child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel, or starved
                child.wait(1)
            self._killed.append(child)
        self._reap()

    def _reap(self) -> None:
        self._killed = [each for each in self._killed if each.poll() is None]

    def _ask_child(self, wanted: Iterable[str]) -> bytes:
        if self._child is None:
            self._child = start_probe("holdings", self.folder, subprocess.PIPE)
            self._begun = time.monotonic()
        assert self._child.stdin is not None  # noqa: S101 (a pipe)
        try:
            os.write(self._child.stdin.fileno(), f"{' '.join(wanted)}\n".encode())
        except BrokenPipeError:
            raise OSError(_last_words(self._child)) from None
        return self._read_line(self._child)

    def _read_line(self, child: subprocess.Popen[bytes]) -> bytes:
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


def _parse_readings(gpus: Iterable[dict[str, Any]]) -> dict[str, Reading]:
    return {
        gpu["uuid"]: Reading(
            gpu["used_bytes"],
            dict(gpu["holders"]),
            gpu["utilisation"],
            None if gpu["busy"] is None else dict(gpu["busy"]),
        )
        for gpu in gpus
    }
