"""Paths of the source tree for every test."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (".", "native", "shim", "hook", "cli", "tests", "tests/sim")

for folder in reversed(FOLDERS):
    path = str((ROOT / folder).resolve())
    if path not in sys.path:
        sys.path.insert(0, path)
