"""Asks the driver for its GPUs through a child process, since the driver may hang or crash."""

from __future__ import annotations

import asyncio
import json
import subprocess
from typing import TYPE_CHECKING

from cgpu_env.errors import CgpuError, printable
from cgpu_k8s.node.node_resources import DriverGpu
from cgpu_k8s.objects.links import LEVELS, UNKNOWN, GpuLink
from cgpu_node.facts.discovery import start_probe
from cgpu_node.facts.node import check_release

if TYPE_CHECKING:
    from collections.abc import Callable

_PATIENCE = 4.0  # seconds; observations are 5 s apart, so a lost GPU is noticed within 10 s
_FIRST_PATIENCE = 120.0  # a driver without persistence daemon takes seconds to start each GPU


class Driver:
    """Asks the driver which GPUs it has and which of them answer.

    A child process keeps the driver in use until ``close``.

    Args:
        folder: returns the directory of the driver's libraries, or raises a CgpuError.
    """

    def __init__(self, folder: Callable[[], str]) -> None:
        self._folder = folder
        self._child: subprocess.Popen[bytes] | None = None
        self._asked = ""  # the directory of the child's driver
        self._killed: list[subprocess.Popen[bytes]] = []
        self._opening: asyncio.Future[tuple[DriverGpu, ...]] | None = None

    async def list_gpus(self) -> tuple[DriverGpu, ...] | None:
        """Return the GPUs, also those that do not answer; None while the driver starts.

        Raises:
            CgpuError: the driver does not answer, or is too old for cgpu.
        """
        if self._opening is None and self._child:
            return await self._await_answer(_PATIENCE)
        opening = self._opening = self._opening or asyncio.ensure_future(
            self._await_answer(_FIRST_PATIENCE)
        )
        await asyncio.wait({opening}, timeout=_PATIENCE)
        if not opening.done():
            return None
        self._opening = None
        return opening.result()

    async def _await_answer(self, patience: float) -> tuple[DriverGpu, ...]:
        try:
            return await asyncio.wait_for(asyncio.to_thread(self._query_probe), patience)
        except (OSError, ValueError, KeyError, TypeError, asyncio.TimeoutError) as error:
            self._end_session()
            why = printable(str(error), 400) or f"no answer within {patience:g} s"
            raise CgpuError(f"the driver does not say which GPUs there are: {why}") from None
        except CgpuError:
            self._end_session()  # another driver can be installed only while this one is not in use
            raise

    def close(self) -> None:
        """Release the driver. The next call starts a new session, which sees GPUs that are back."""
        opening, self._opening = self._opening, None
        if opening and not opening.cancel():
            opening.exception()  # mark it as retrieved, or asyncio logs it
        self._end_session()

    def _end_session(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()  # this also ends a thread that reads from it
            self._killed.append(child)
        # Do not wait: a process that is stuck in the kernel does not die.
        self._killed = [each for each in self._killed if each.poll() is None]

    def _query_probe(self) -> tuple[DriverGpu, ...]:
        child = self._child
        if child is None:
            self._await_killed()
            self._asked = self._folder()
            child = self._child = start_probe("gpus", self._asked, subprocess.PIPE)
        if child.stdin is None or child.stdout is None:
            raise OSError("no pipe to the probe")
        try:
            child.stdin.write(b"\n")
            child.stdin.flush()
            answer = child.stdout.readline()
        except BrokenPipeError:
            answer = b""
        if not answer:
            raise OSError(_read_last_line(child))
        found = json.loads(answer)
        check_release(found["driver_version"], self._asked)
        return (
            *(
                DriverGpu(
                    gpu["uuid"],
                    gpu["index"],
                    gpu["name"],
                    gpu["memory_bytes"] >> 20,
                    links=_read_links(gpu["index"], found["links"]),
                    in_mig_mode=gpu.get("mig", False),
                )
                for gpu in found["gpus"]
            ),
            *(DriverGpu(gpu["uuid"], gpu["index"], "", 0, gpu["lost"]) for gpu in found["lost"]),
        )

    def _await_killed(self) -> None:
        """Wait for killed children, so that stuck ones do not accumulate.

        Raises:
            OSError: one does not die.
        """
        try:
            for each in self._killed:
                each.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            raise OSError(f"process {each.pid}, which asked it, does not even die") from None


def _read_links(gpu: int, links: list[list[int]]) -> dict[int, GpuLink]:
    """Return the links from a GPU to those of higher index, from the probe's pairs of GPUs."""
    return {
        other: GpuLink(LEVELS.get(level, UNKNOWN), nvlinks)
        for one, other, level, nvlinks in links
        if one == gpu
    }


def _read_last_line(child: subprocess.Popen[bytes]) -> str:
    lines = child.stderr.read().decode(errors="replace").split("\n") if child.stderr else []
    return next((each for each in reversed(lines) if each.strip()), "it has ended its answers")
