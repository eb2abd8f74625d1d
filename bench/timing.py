"""Wall time of whole commands, measured in turns so that noise affects all of them alike."""

from __future__ import annotations

import random
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Timing(NamedTuple):
    """Median and quartiles of one command, in milliseconds; ``samples_ms`` round by round."""

    median_ms: float
    low_ms: float
    high_ms: float
    samples_ms: tuple[float, ...]

    def beyond(self, other: Timing) -> float:
        """Median of the differences to ``other``, which was taken in the same rounds."""
        pairs = zip(self.samples_ms, other.samples_ms, strict=True)
        return round(statistics.median(own - its for own, its in pairs), 2)


def once(command: Sequence[str]) -> float:
    """Run ``command`` to its end and return its wall time in milliseconds.

    Raises:
        RuntimeError: the command failed; its last line of output is in the message.
    """
    start = time.perf_counter()
    run = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    elapsed = (time.perf_counter() - start) * 1000
    if run.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {run.stdout.decode(errors='replace')[-500:]}")
    return elapsed


def in_turns(commands: Mapping[str, Sequence[str]], rounds: int) -> dict[str, Timing]:
    """Time each command ``rounds`` times, one of each per round; one round warms up.

    Each round has an order of its own, the same in every run. With an order and its reverse, the
    commands at both ends come after themselves every other time, and the others never: plain
    ``docker run`` takes 255 ms after itself and 271 after another runtime.
    """
    order = random.Random(0)
    samples: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(rounds + 1):
        for name in order.sample(list(commands), len(commands)):
            command = commands[name]
            elapsed = once(command)
            if turn > 0:
                samples[name].append(elapsed)
    return {name: _summary(values) for name, values in samples.items()}


def _summary(values: list[float]) -> Timing:
    low, median, high = statistics.quantiles(values, n=4)
    samples = tuple(round(value, 2) for value in values)
    return Timing(round(median, 2), round(low, 2), round(high, 2), samples)
