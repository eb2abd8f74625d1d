"""The proxies built to count the lines that programs run through them, for gcov."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "coverage" / "c"
COUNT = ("-O0", "--coverage", "-fprofile-abs-path", "-fprofile-update=atomic")


def _compile(words: list[str], source: str, folder: Path) -> str:
    target = folder / Path(source).with_suffix(".o")
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["gcc", *words, "-c", source, "-o", target], check=True, cwd=ROOT)
    counts = target.with_suffix(".gcda")
    counts.touch()
    counts.chmod(0o666)  # programs of any user add to it
    return str(target)


def _build(binary: Any) -> None:
    """``binary`` of setup.py with the same flags, by gcc."""
    flags = [word for word in binary.flags if word != "-flto"]
    options = [word for word in flags if not word.startswith(("-Wl", "-shared", "-l"))]
    words = ["-std=gnu11", "-D_FILE_OFFSET_BITS=64", "-iquote", "native", *options, *COUNT]
    target = BUILD / Path(binary.path).name
    folder = target.with_suffix(".objects")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(lambda each: _compile(words, each, folder), binary.sources))
    stub = ROOT / "build" / f"needed-{os.uname().machine}" / f"{target.name}.stub.so"
    words = ["gcc", "-o", str(target), *objects, *flags, "-Wl,--no-as-needed", str(stub)]
    subprocess.run([*words, "--coverage"], check=True, cwd=ROOT)


def build() -> None:
    """Build the proxies that count, each with the name of the one that it stands for."""
    shutil.rmtree(BUILD, ignore_errors=True)  # its counts are for the objects beside them
    argv, sys.argv = sys.argv, ["setup.py", "--quiet", "--name"]
    with redirect_stdout(None):
        binaries = runpy.run_path(str(ROOT / "setup.py"))["BINARIES"]
    sys.argv = argv
    for each in binaries:
        if each.needed:
            _build(each)
