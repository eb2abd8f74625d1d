"""Words of command lines that more than one command takes, and which GPUs they mean."""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING

from cgpu_env import CgpuError
from cgpu_env.errors import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cgpu_hook.view import GpuTotals, Usage

_SHORTEST, _LONGEST = 0.1, 86400  # seconds


def seconds(word: str) -> float:
    """How long to wait between two looks, from a command line.

    Raises:
        ArgumentTypeError: it is no such time.
    """
    with contextlib.suppress(ValueError):
        value = float(word)
        if _SHORTEST <= value <= _LONGEST:
            return value
    allowed = f"expected a number of seconds from {_SHORTEST} to {_LONGEST}"
    raise argparse.ArgumentTypeError(f"{shown(word)!r}: {allowed}")


def add_gpus(parser: argparse.ArgumentParser) -> None:
    """``-i``, as nvidia-smi has it."""
    parser.add_argument(
        "-i",
        "--id",
        metavar="GPU",
        type=lambda text: text.split(","),
        help="only these: indices or UUIDs, with commas between",
    )


def chosen(usage: Usage, words: Sequence[str] | None) -> Usage:
    """What of ``usage`` is on the GPUs that ``words`` name; None: all of it.

    Raises:
        CgpuError: a word names no GPU, or several.
    """
    if words is None:
        return usage
    wanted = {_gpu(usage, word).uuid for word in words}
    uses = [
        use._replace(gpus=tuple(gpu for gpu in use.gpus if gpu.uuid in wanted))
        for use in usage.uses
    ]
    return usage._replace(
        gpus=tuple(gpu for gpu in usage.gpus if gpu.uuid in wanted),
        uses=tuple(use for use in uses if use.gpus),
    )


def _gpu(usage: Usage, word: str) -> GpuTotals:
    named = [gpu for gpu in usage.gpus if word in (str(gpu.index), gpu.uuid)]
    found = named or [gpu for gpu in usage.gpus if word and gpu.uuid.startswith(word)]
    if len(found) != 1:
        there = f"one of {', '.join(str(gpu.index) for gpu in usage.gpus)}, or a UUID"
        raise CgpuError(f"--id {shown(word)}: expected {there}", hint="cgpu-smi -L lists them")
    return found[0]
