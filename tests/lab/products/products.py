"""Products of ``setup.py``'s table, built for any processor outside the source tree."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

# setup.py is a script: it is run with a setup() that does nothing, for its table and its builder.
PROGRAM = """
import runpy, sys, setuptools
from pathlib import Path
setuptools.setup = lambda **_: None
module = runpy.run_path("setup.py")
[binary] = [b for b in module["BINARIES"] if b.path == sys.argv[1]]
module["build_binary"](binary, Path(sys.argv[2]))
"""


def build(path: str, machine: str, folder: Path, root: Path = ROOT) -> Path:
    """Build the product ``path`` of the table for ``machine`` (``aarch64``) into ``folder``."""
    target = folder / Path(path).name
    subprocess.run(
        [sys.executable, "-c", PROGRAM, path, str(target)],
        cwd=root,
        env=os.environ | {"CGPU_BUILD_MACHINE": machine},
        check=True,
    )
    return target
