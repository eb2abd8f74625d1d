"""Folders that other users can enter, which pytest's own are closed to."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from lab.machine.servers import end_all


def make(prefix: str) -> Path:
    """A new folder, with our process id in its name; what killed runs have left goes."""
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}[1-9]*-*"):
        pid = left.name.removeprefix(prefix).partition("-")[0]
        if pid.isdecimal() and not Path("/proc", pid).exists():
            remove(left)
    folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-"))
    folder.chmod(0o755)
    return folder


def remove(folder: Path) -> None:
    """Remove a folder, when all that name it have ended."""
    end_all(folder)
    shutil.rmtree(folder, ignore_errors=True)
