"""ResNet50 in two programs of weights 1 and 2, the commercial system's own published test."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from gpu.cage import Ask
from gpu.check import HOST, Finding, NotRunError, check, heard
from gpu.shares.spinners import LEAD_NS
from gpu.shares.weights import WEIGHTED_FAIR
from gpu.world import World, log_of, stop

WEIGHTS, TARGET, OFF = (1, 2), 2.0, 0.02
SECONDS, SECONDS_BRIEF = 20.0, 8.0
TRAINED, INFERRED = (16, 32, 64, 128), (1, 2, 4, 8, 16, 32, 64, 128)
BRIEF = (16, 128)


def _tell(process: subprocess.Popen[str], *words: int) -> None:
    assert process.stdin is not None
    process.stdin.write(" ".join(map(str, words)) + "\n")
    process.stdin.flush()


def _hear(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    for line in process.stdout:
        message = heard(line)
        if message is not None:
            return message
    raise RuntimeError(f"ResNet50 ended: {log_of(process).strip()[-400:]}")


def _ratio(
    pair: Sequence[subprocess.Popen[str]], batch: int, seconds: float
) -> dict[str, Any] | None:
    """Images a second of both and their ratio; None where the batch does not fit.

    ``parts``: what each does, of what its weight gives it of what the first does alone. If both do
    more, the GPU is not busy, and the ratio says nothing.
    """
    for process in pair:
        _tell(process, batch)
    ready = [_hear(process)["ready"] for process in pair]
    if not all(ready):
        return None
    [alone] = _rates(pair[:1], seconds / 4)
    one, two = _rates(pair, seconds)
    off = abs(two / one / TARGET - 1)
    parts = [
        rate / alone * sum(WEIGHTS) / weight
        for rate, weight in zip((one, two), WEIGHTS, strict=True)
    ]
    return {
        "alone": alone,
        "rates": [one, two],
        "ratio": round(two / one, 4),
        "parts": [round(part, 4) for part in parts],
        "off": round(0.0 if min(parts) > 1 else off, 4),
    }


def _rates(some: Sequence[subprocess.Popen[str]], seconds: float) -> list[float]:
    """Images a second of each, at the same time."""
    start = time.monotonic_ns() + LEAD_NS
    for process in some:
        _tell(process, start, start + int(seconds * 1e9))
    return [_hear(process)["rate"] for process in some]


def ratios(world: World, kind: str, batches: Sequence[int]) -> Finding:
    """The ratio of what the two programs do, for each batch size."""
    command = [world.python, "-m", "gpu.shares.resnet", kind]
    asks = [Ask(weight, WEIGHTED_FAIR) for weight in WEIGHTS]
    pair = [world.start(command, capped=True, ask=ask) for ask in asks]
    try:
        seconds = SECONDS_BRIEF if world.brief else SECONDS
        kept = BRIEF if world.brief else batches
        found = {batch: _ratio(pair, batch, seconds) for batch in kept}
    finally:
        for process in pair:
            stop(process)
    fitting = {batch: each for batch, each in found.items() if each}
    if not fitting:
        raise NotRunError(f"no batch fits into {world.cap >> 20} MiB")
    worst = max(each["off"] for each in fitting.values())
    measured: dict[str, Any] = json.loads(json.dumps({"worst": worst, "batches": fitting}))
    measured["do not fit"] = sorted(set(found) - set(fitting))
    return Finding(worst <= OFF, measured)


@check("shares", HOST, torch=True)
def resnet50_trains_at_1_to_2(world: World) -> Finding:
    """ResNet50 training in FP16, weights 1 and 2: at most 2 % off 2.00, unless both do more.

    At batch 16 to 128, those that fit. The makers of the commercial system publish 2.00 to 2.05.
    """
    return ratios(world, "training", TRAINED)


@check("shares", HOST, torch=True)
def resnet50_infers_at_1_to_2(world: World) -> Finding:
    """Likewise its inference at batch 1 to 128; there they publish 1.99 falling to 1.77."""
    return ratios(world, "inference", INFERRED)
