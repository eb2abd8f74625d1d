"""The machine's own packages that the tests need."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

SETUP = Path(__file__).resolve().parents[3] / "deploy" / "setup.sh"


@functools.cache
def ensure_packages() -> None:
    """Install what the container tests need and this machine lacks (``deploy/setup.sh test``)."""
    subprocess.run(["sh", str(SETUP), "test"], check=True)
