"""Whether other users can read this checkout: some tests run its programs as one."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


def check_readable(root: Path) -> None:
    """End the run with one sentence if it is root's and other users cannot read the checkout.

    A clone that was made under a umask of 077 is such a one.
    """
    for path in (root / "setup.py", root / "tests", *root.glob(".venv/bin")):
        needed = stat.S_IROTH | (stat.S_IXOTH if path.is_dir() else 0)
        if os.geteuid() == 0 and path.stat().st_mode & needed != needed:
            sentence = (
                f"other users cannot read {path}, and some tests run these files as another user"
            )
            pytest.exit(f"{sentence}: chmod -R go+rX {root}", returncode=4)
