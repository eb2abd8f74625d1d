"""A root filesystem with this machine's Python: no download, and no distribution's tool."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

PYTHON = "/python"
_LIBRARY = re.compile(r"(/\S+) \(0x")  # of a line that ldd prints
_MODULES = """
import runpy, sys
runpy.run_path(sys.argv[1])
for module in list(sys.modules.values()):
    print(getattr(module, "__file__", None) or "")
"""


def make(root: Path, program: Path, used: Iterable[Path]) -> None:
    """Fill ``root`` with what ``PYTHON -IS program`` and the files ``used`` load, at its own paths.

    The program and ``used`` themselves are not in it.
    """
    python = Path(sys._base_executable).resolve()  # noqa: SLF001 (of no virtual environment)
    listed = _output(python, "-IS", "-c", _MODULES, program)
    modules = [Path(line) for line in listed.splitlines() if line and Path(line) != program]
    loaded = [python, *(module for module in modules if module.suffix == ".so")]
    for path in {*modules, python, *_libraries([*loaded, *used])}:
        target = root / path.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    (root / PYTHON.lstrip("/")).symlink_to(python)


def _libraries(files: Iterable[Path]) -> set[Path]:
    """Return the libraries that the dynamic loader gives ``files``, and the loader itself."""
    found = (_LIBRARY.findall(_output(Path("/usr/bin/ldd"), file)) for file in files)
    return {Path(path) for paths in found for path in paths}


def _output(*words: str | Path) -> str:
    """What a program prints.

    Raises:
        RuntimeError: it failed. An interrupt of the demonstration reaches it too, and its last
            words about that are not shown.
    """
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{words[0]} failed: {done.stderr.strip()}")
    return done.stdout
