"""What a check is: one statement, the function that tests it, and where that must run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

MIB = 1 << 20
CHUNK = 2 * MIB  # what the driver takes and gives back at a time: the noise of every figure

PLAIN, CAPPED, HOST = "plain", "capped", "host"


class NotRunError(Exception):
    """The check cannot be done here; its text says why."""


class Finding(NamedTuple):
    """Whether the statement holds, and what was seen."""

    holds: bool
    measured: dict[str, Any]


class Check(NamedTuple):
    """One statement about the driver or about cgpu on it.

    Attributes:
        name: of the function.
        part: ``facts``, ``limits`` or ``shares``.
        statement: its docstring.
        run: the test; takes nothing, or the ``World`` where ``where`` is ``host``.
        where: ``plain`` child process, ``capped`` child under cgpu-run, or this ``host`` process.
        simulated: whether the simulated driver can do it.
        torch: whether it needs PyTorch.
        environment: variables of the child.
    """

    name: str
    part: str
    statement: str
    run: Callable[..., Finding]
    where: str
    simulated: bool
    torch: bool
    environment: tuple[tuple[str, str], ...]


CHECKS: list[Check] = []


def check(
    part: str,
    where: str = PLAIN,
    *,
    simulated: bool = True,
    torch: bool = False,
    environment: tuple[tuple[str, str], ...] = (),
) -> Callable[[Callable[..., Finding]], Callable[..., Finding]]:
    """Enter the decorated function into ``CHECKS``; its docstring is the statement."""

    def enter(run: Callable[..., Finding]) -> Callable[..., Finding]:
        statement = " ".join((run.__doc__ or "").split())
        name = run.__name__
        CHECKS.append(Check(name, part, statement, run, where, simulated, torch, environment))
        return run

    return enter


def ordinal() -> int:
    """The CUDA ordinal of the GPU under test, in a child."""
    return int(os.environ.get("CGPU_CHECK_GPU", "0"))


def cap() -> int:
    """The bytes that a capped child is to get."""
    return int(os.environ["CGPU_CHECK_CAP"])


def meets(*bars: bool) -> bool:
    """Whether figures of time meet their bars; the simulated driver's only need to be there."""
    return all(bars) or bool(os.environ.get("CGPU_CHECK_SIMULATED"))


def say(**message: object) -> None:
    """A line for the process that started this child."""
    print(json.dumps({"cgpu": message}), flush=True)


def heard(line: str) -> dict[str, Any] | None:
    """The message in a child's line, if it is one."""
    if not line.startswith('{"cgpu": '):
        return None
    message: dict[str, Any] = json.loads(line)["cgpu"]
    return message


def driver_bytes() -> int:
    """What the real NVML, asked outside of the cap, says this child holds now."""
    say(sample=os.getpid())
    return int(json.loads(sys.stdin.readline())["bytes"])


def near(one: int, other: int, share: float = 0.0) -> bool:
    """Whether two figures differ by at most one chunk, or by ``share`` of the second."""
    return abs(one - other) <= max(CHUNK, share * other)
