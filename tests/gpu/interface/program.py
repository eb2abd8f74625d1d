"""The C programs of this folder, which talk to the driver without a runtime."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from gpu.check import NotRunError

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[2] / "bench" / "_build"


def compiled(name: str) -> str:
    """Path of the program ``name``, built by the first compiler that is here.

    Raises:
        NotRunError: there is none.
    """
    zig = [sys.executable, "-m", "ziglang", "cc"]
    compilers = [[path] for each in ("gcc", "cc", "clang") if (path := shutil.which(each))]
    BUILD.mkdir(exist_ok=True)
    source, program, output = HERE / f"{name}.c", BUILD / f"gpu-{name}", ""
    parts = [source, *HERE.glob("*.h")]
    if program.exists() and program.stat().st_mtime > max(p.stat().st_mtime for p in parts):
        return str(program)
    for compiler in [*compilers, zig]:
        words = [*compiler, "-std=gnu11", "-O2", str(source), "-o", str(program), "-ldl"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return str(program)
        output = done.stderr.strip()[-200:]
    raise NotRunError(f"no C compiler: {output}")
