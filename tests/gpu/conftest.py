"""A machine with a real GPU, or the reason why there is none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu.world import World

ASK = "import ctypes, sys; sys.exit(ctypes.CDLL('libcuda.so.1').cuInit(0))"


def obstacle() -> str:
    """Why no test of a GPU can run here; empty if one can."""
    if not Path("/dev/nvidiactl").exists():
        return "no NVIDIA GPU: /dev/nvidiactl is missing"
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1:]
    return f"cuInit gave {done.returncode} {' '.join(last)}" if done.returncode else ""


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    """The first GPU of this machine, with a state directory of its own."""
    reason = obstacle()
    if reason:
        pytest.skip(reason)
    made = World(None, 0, sys.executable, simulated=False)
    yield made
    made.close()
