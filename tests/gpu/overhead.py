"""What cgpu adds on the real driver: child processes with and without it, in turns."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from typing import Any

from gpu.check import NotRunError, heard
from gpu.interface.program import compiled
from gpu.limits.training import LONG
from gpu.world import World

ROUNDS, TRAININGS = 7, 3
CALLS = {
    "launch": "cuLaunchKernel",
    "pair_4_kib": "cuMemAlloc + cuMemFree of 4 KiB",
    "pair_4_mib": "cuMemAlloc + cuMemFree of 4 MiB",
    "mem_get_info": "cuMemGetInfo",
}


def _samples(world: World, command: list[str], rounds: int) -> dict[bool, list[dict[str, Any]]]:
    """What ``command`` prints, plain (False) and capped (True), one of each per round."""
    world.needs_capping()
    samples: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for _ in range(rounds):
        for capped, found in samples.items():
            done = world.run(command, capped=capped)
            if done.code != 0:
                raise NotRunError(f"{command[0]} failed: {done.log.strip()[-300:]}")
            found.append(_figures(done.out))
    return samples


def _figures(out: str) -> dict[str, Any]:
    last: dict[str, Any] = {}
    for line in out.splitlines():
        last = heard(line) or (json.loads(line) if line.startswith('{"launch"') else last)
    return last


def _row(plain: list[float], capped: list[float], unit: str) -> dict[str, Any]:
    """Medians over the rounds, and all rounds, so that their spread can be judged."""
    without, with_cgpu = statistics.median(plain), statistics.median(capped)
    ratio = with_cgpu / without if without else 0.0
    return {
        "plain": f"{without:.4g} {unit}",
        "capped": f"{with_cgpu:.4g} {unit}",
        "result": f"{with_cgpu - without:+.4g} {unit}, x {ratio:.3f}",
        "rounds_plain": plain,
        "rounds_capped": capped,
    }


def _calls(world: World) -> dict[str, Any]:
    samples = _samples(world, [compiled("calls")], ROUNDS)
    return {
        title: _row([s[key] for s in samples[False]], [s[key] for s in samples[True]], "ns")
        for key, title in CALLS.items()
    }


def _training(world: World) -> dict[str, Any]:
    if world.torch_obstacle:
        raise NotRunError(world.torch_obstacle)
    samples = _samples(world, [world.python, "-c", LONG], TRAININGS)
    times = [[s["step_ms"] for s in samples[capped]] for capped in (False, True)]
    return {"PyTorch training step": _row(times[0], times[1], "ms")}


def _measured(world: World, name: str, part: Callable[[World], dict[str, Any]]) -> dict[str, Any]:
    try:
        return part(world)
    except NotRunError as error:
        return {name: {"not_run": str(error)}}


def measure(world: World) -> dict[str, Any]:
    """Name -> plain, capped and result; or not_run with the reason."""
    return _measured(world, "driver calls", _calls) | _measured(world, "training", _training)
