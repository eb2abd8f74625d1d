"""The tests of tests/gpu that are no wrappers of checks, as one more outcome of a run."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

from gpu.world import FAILS, HOLDS, NOT_RUN, Outcome, World

ROOT = Path(__file__).resolve().parents[2]
OWN = ["tests/gpu/test_gpu_nvml_view.py"]
STATEMENT = "The tests of tests/gpu pass that are not checks themselves."


def outcome(world: World) -> Outcome:
    """Run them with this Python, on the system's driver."""
    head = ("the_gpu_tests_pass", "tests", "", STATEMENT)
    if world.simulated:
        return Outcome(*head, NOT_RUN, {}, "they need a GPU")
    if importlib.util.find_spec("pytest") is None:
        return Outcome(*head, NOT_RUN, {}, "no pytest")
    words = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", *OWN]
    environment = world.environment(plain=True)
    done = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    last = (done.stdout.strip().splitlines() or [done.stderr.strip()[-300:]])[-1]
    if done.returncode == 0 and "skipped" in last:
        return Outcome(*head, NOT_RUN, {"summary": last}, last)
    return Outcome(*head, FAILS if done.returncode else HOLDS, {"summary": last})
