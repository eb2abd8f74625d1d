"""A Python of its own for programs from PyPI that nobody here wrote, on this machine."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from real_driver import cache_directory

PACKAGES = ("gpustat==1.1.1", "nvidia-ml-py==12.575.51", "nvitop==1.5.1")


def guest_python() -> Path:
    """The interpreter of a virtual environment with ``PACKAGES``; made once."""
    recipe = repr((PACKAGES, sys.version_info[:2]))
    cache = cache_directory()
    root = cache / f"python-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    python = root / "bin" / "python"
    with (cache / ".python.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / ".ready").exists():
            shutil.rmtree(root, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", root], check=True)
            pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
            subprocess.run([*pip, *PACKAGES], check=True)
            (root / ".ready").touch()
    return python
