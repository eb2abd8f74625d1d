"""``make demo``, as a newcomer on a machine with Docker sees it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]


def test_the_demonstration_runs_two_containers_and_succeeds() -> None:
    """CLI-1, ENV-6, ENV-8, MEM-2, MEM-4, SCH-6: shares by the simulated GPU's own account."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, ROOT / "deploy" / "demo"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shown = done.stdout
    assert "$ docker run --runtime=cgpu -e ALIYUN_COM_GPU_MEM_CONTAINER=6" in shown
    assert "0MiB /  6043MiB" in shown
    assert "0MiB /  9065MiB" in shown
    assert "CUDA_ERROR_OUT_OF_MEMORY" in shown
    assert "-e ALIYUN_COM_GPU_SCHD_WEIGHT=2 " in shown
    had = [float(n) for n in re.findall(r"own account \d+ of 15 had ([\d.]+) %", shown)]
    assert had == pytest.approx([100 / 3, 200 / 3], abs=3)
    assert "where 0 of 15109 MiB are free" in shown
    assert shown.endswith("All of it as it must be.\n")
