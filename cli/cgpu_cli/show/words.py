"""Arguments that several commands take, and the GPUs that they mean."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence

from cgpu_env import CgpuError
from cgpu_env.devices import format_gpus
from cgpu_env.errors import printable
from cgpu_node.shares import target
from cgpu_node.view.view import Usage

_SHORTEST, _LONGEST = 0.1, 86400  # seconds


def parse_seconds(word: str) -> float:
    """Parse the time between two refreshes from a command line.

    Raises:
        ArgumentTypeError: ``word`` is no such time.
    """
    with contextlib.suppress(ValueError):
        value = float(word)
        if _SHORTEST <= value <= _LONGEST:
            return value
    allowed = f"expected a number of seconds from {_SHORTEST} to {_LONGEST}"
    raise argparse.ArgumentTypeError(f"'{printable(word)}': {allowed}")


def add_gpus(parser: argparse.ArgumentParser) -> None:
    """Add ``-i``, as nvidia-smi has it."""
    parser.add_argument(
        "-i",
        "--id",
        metavar="GPU",
        type=lambda text: text.split(","),
        help="only these GPUs (index or UUID) and containers (id or name), separated by commas",
    )


def filter_usage(usage: Usage, words: Sequence[str] | None) -> Usage:
    """Return the use of the GPUs and containers that ``words`` mean; None: of all.

    Raises:
        CgpuError: a word means no GPU and no container, or several.
    """
    if words is None:
        return usage
    uuids, ids = _resolve_words(usage, words)
    uses = [
        use._replace(gpus=tuple(g for g in use.gpus if g.uuid in uuids or use.id in ids))
        for use in usage.uses
    ]
    shown_on = uuids | {gpu.uuid for use in uses for gpu in use.gpus}
    return usage._replace(
        gpus=tuple(gpu for gpu in usage.gpus if gpu.uuid in shown_on),
        uses=tuple(use for use in uses if use.gpus),
    )


def _resolve_words(usage: Usage, words: Sequence[str]) -> tuple[set[str], set[str]]:
    """Return UUIDs of GPUs, and ids of containers."""
    gpus = {gpu.uuid: gpu.index for gpu in usage.gpus}
    names = {use.id: use.name for use in usage.uses}
    uuids, ids = set(), set()
    for word in words:
        if target.match_gpus(word, gpus):
            uuids.add(target.find_gpu(word, gpus))
        elif target.match_containers(word, names):
            ids.add(target.find_container(word, names))
        else:
            what = f"a GPU's index or UUID, or a container; {format_gpus(gpus.values())}"
            raise CgpuError(f"--id {printable(word)}: expected {what}", hint="cgpu-smi lists them")
    return uuids, ids
