"""A separate Python on this machine for programs of others from PyPI."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from lab.driver.real_driver import cache_directory

PACKAGES = (
    "cuda-bindings==12.9.10",
    "gpustat==1.1.1",
    "numba-cuda[cu12]==0.30.4",
    "numpy<2.5",
    "nvidia-ml-py==12.575.51",
    "nvitop==1.5.1",
)
CUDA_13 = ("cuda-bindings==13.5.0",)


def guest_python(packages: tuple[str, ...] = PACKAGES) -> Path:
    """The interpreter of a virtual environment with ``packages``; made once."""
    recipe = repr((packages, sys.version_info[:2]))
    cache = cache_directory()
    root = cache / f"python-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    python = root / "bin" / "python"
    with (cache / ".python.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / ".ready").exists():
            shutil.rmtree(root, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", root], check=True)
            pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
            subprocess.run([*pip, *packages], check=True)
            (root / ".ready").touch()
    return python
