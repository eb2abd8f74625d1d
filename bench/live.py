"""Shares of real programs under ``cgpu-run`` on the simulated GPU, and what arbitration costs."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from gpu.cage import PYTHONPATH, Ask
from gpu.shares.spinners import LEAD_NS, Group, spinning
from gpu.world import World

LENGTHS_US, STEP_S, SECONDS, CHANGE_S = (500, 2_000), 0.25, 20.0, 10.0
WEIGHTS, NEW_WEIGHT = (1, 2), 4
GRID_US, GRID_WEIGHTS, GRID_SECONDS = (50, 5_000, 50_000), (3, 1), 10.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def _cgpu(world: World, *words: str) -> str:
    """The output of a command of ``cgpu``."""
    options = ["--state-dir", str(world.folder / "state"), "--driver-dir", str(world.driver_dir)]
    command = [sys.executable, "-m", "cgpu_cli.main", words[0], *options, *words[1:]]
    environment = os.environ | {"PYTHONPATH": PYTHONPATH}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"cgpu {' '.join(words)}: {done.stderr.strip()[-300:]}")
    return done.stdout


def _status(world: World) -> dict[str, Any]:
    status: dict[str, Any] = json.loads(_cgpu(world, "get", "--json"))
    return status


class Server:
    """The server's processor time: of its thread for the GPU, and of the whole process."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._before = self._read()

    def _read(self) -> tuple[float, float, float]:
        status = _status(self._world)
        fields = Path(f"/proc/{status['pid']}/stat").read_text().rpartition(")")[2].split()
        whole = (int(fields[11]) + int(fields[12])) * _TICK_S
        return time.monotonic(), status["gpus"][0]["figures"]["cpu_ns"] / 1e9, whole

    def percent(self) -> dict[str, float]:
        """Of one core, since the beginning."""
        passed, thread, whole = (
            now - then for now, then in zip(self._read(), self._before, strict=True)
        )
        return {
            "thread_percent": round(100 * thread / passed, 2),
            "server_percent": round(100 * whole / passed, 2),
        }


class Change:
    """Change the first program's weight; ``done_s`` is the time after the start."""

    def __init__(self, world: World, start: int) -> None:
        lighter = next(c for c in _status(world)["containers"] if c["weight"] == WEIGHTS[0])
        self._world, self._start, self._name = world, start, str(lighter["id"])
        self.done_s = 0.0

    def make(self) -> None:
        """Change the weight; the change is in force when this returns."""
        time.sleep(max(0.0, self._start / 1e9 + CHANGE_S - time.monotonic()))
        _cgpu(self._world, "set", self._name, f"weight={NEW_WEIGHT}")
        self.done_s = time.monotonic() - self._start / 1e9


def _run(world: World, group: Group) -> dict[str, Any]:
    for length in LENGTHS_US:
        group.prepare(length)
    server = Server(world)
    start = time.monotonic_ns() + 2 * LEAD_NS
    change = Change(world, start)
    thread = threading.Thread(target=change.make)
    thread.start()
    try:
        shares = group.run(LENGTHS_US, SECONDS, round(SECONDS / STEP_S), start)
    finally:
        thread.join()
    before, after = sum(WEIGHTS), NEW_WEIGHT + WEIGHTS[1]
    programs = zip(WEIGHTS, (NEW_WEIGHT, WEIGHTS[1]), LENGTHS_US, shares, strict=True)
    return {
        "step_s": STEP_S,
        "change_s": round(change.done_s, 3),
        "change": f"weight {WEIGHTS[0]} becomes {NEW_WEIGHT}",
        "arbiter": server.percent(),
        "programs": [
            {
                "name": f"weight {old}" + (f", then {new}" if new != old else ""),
                "length_us": length,
                "targets": [old / before, new / after],
                "shares": [round(share, 4) for share in series],
            }
            for old, new, length, series in programs
        ],
    }


def _grid(world: World) -> dict[str, Any]:
    """Shares of weights 3 and 1 for each pair of kernel lengths."""
    cells: list[dict[str, Any]] = []
    with spinning(world, [Ask(weight) for weight in GRID_WEIGHTS]) as group:
        for pair in itertools.product(GRID_US, GRID_US):
            (one,), (other,) = group.run(pair, GRID_SECONDS)
            off = 100 * (one / (one + other) - GRID_WEIGHTS[0] / sum(GRID_WEIGHTS))
            busy = round(100 * (one + other), 1)
            cells.append({"lengths_us": pair, "off_points": round(off, 2), "busy_percent": busy})
    sizes = [abs(cell["off_points"]) for cell in cells]
    mean = round(sum(sizes) / len(sizes), 2)
    return {
        "seconds": GRID_SECONDS,
        "worst_points": max(sizes),
        "mean_points": mean,
        "cells": cells,
    }


def measure() -> dict[str, Any]:
    """A pair of weights 1 and 2, of which the first changes half way; a grid of 75 to 25."""
    from cgpu_sim import make_driver_dir  # noqa: PLC0415 - a module of the tests

    with tempfile.TemporaryDirectory(dir="/dev/shm", ignore_cleanup_errors=True) as folder:
        driver = make_driver_dir(Path(folder) / "driver")
        world = World(str(driver), 0, sys.executable, simulated=True)
        try:
            with spinning(world, [Ask(weight) for weight in WEIGHTS]) as group:
                pair = _run(world, group)
            return {**pair, "grid": _grid(world)}
        finally:
            world.close()
