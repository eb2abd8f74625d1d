"""Builds and runs fuzzers: of readers in C with ``driver.c``, in Python with ``mutator.py``.

Of the compilers that the project needs anyway, gcc has the sanitizers and tells which code an input
reaches, but it has no fuzzer of its own; zig has none for C. ``driver.c`` is one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from c.programs import ENVIRONMENT, WARNINGS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUILD = HERE / "_build"
CORPUS = HERE / "corpus"
GOLDEN = ROOT / "tests" / "unit" / "install" / "golden"  # real configurations of engines
SAME = {"config": "document", "text": "document"}  # others have a folder of their own
SEED = 1
FLAGS = [
    *(
        "-std=gnu11",
        "-g",
        "-O1",
        "-Werror",
        *WARNINGS,
        "-D_GNU_SOURCE",
        "-DCGPU_LOCK_PATIENCE_MS=1",
    ),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"),
]


class Target(NamedTuple):
    """What a target reads with: its sources, and the folders of their headers."""

    sources: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()


TARGETS = {
    "document": Target(("hook/common/document.c",), ("hook/common",)),
    "state": Target(("hook/common/state.c",), ("hook/common",)),
    "image": Target(("shim/cuda/memory/code/ptx.c",), ("shim/cuda", "shim", "native")),
    "ledger": Target(("native/**/*.c",), ("native",)),
}


class Outcome(NamedTuple):
    """What a fuzzer found: ``failed`` is the input that ended it, ``output`` tells how."""

    output: str
    failed: Path | None


def build(source: Path, target: Target) -> Path:
    """The program that fuzzes with the target ``source``; compiled unless it is new enough."""
    program = BUILD / source.stem.removeprefix("target_")
    sources = [source, *(path for name in target.sources for path in sorted(ROOT.glob(name)))]
    driver = HERE / "driver.c"
    headers = [path for folder in target.folders for path in (ROOT / folder).rglob("*.[ch]")]
    inputs = [*sources, driver, HERE / "driver.h", *headers, Path(__file__)]
    if program.exists() and all(p.stat().st_mtime < program.stat().st_mtime for p in inputs):
        return program
    BUILD.mkdir(exist_ok=True)
    own = program.with_name(f".{program.name}.{os.getpid()}")
    blind = own.with_suffix(".o")  # the driver's own blocks are no news
    subprocess.run(["gcc", *FLAGS, "-c", str(driver), "-o", str(blind)], check=True)
    quoted = [word for name in (".", *target.folders) for word in ("-iquote", str(ROOT / name))]
    traced = ["-fsanitize-coverage=trace-pc", *map(str, sources), str(blind), "-lpthread"]
    subprocess.run(["gcc", *FLAGS, *quoted, *traced, "-o", str(own)], check=True)
    blind.unlink()
    return own.rename(program)


def command(name: str) -> list[str]:
    """What fuzzes the target ``name``, in C or in Python."""
    if name in TARGETS:
        return [str(build(HERE / f"target_{name}.c", TARGETS[name]))]
    return [sys.executable, str(HERE / "readers.py"), name]


def corpus(name: str) -> Path:
    """The folder of small real inputs of a target."""
    return GOLDEN / name if (GOLDEN / name).exists() else CORPUS / SAME.get(name, name)


def run(name: str, *, count: int = 0, seconds: int = 0, keeps: bool = False) -> Outcome:
    """Try ``count`` inputs on a target, or as many as ``seconds`` are for.

    Args:
        name: of the target.
        count: of inputs.
        seconds: if ``count`` is 0.
        keeps: whether those that reach new code are kept for the next run (C only).
    """
    found = BUILD / "found" / name
    if keeps:
        found.mkdir(parents=True, exist_ok=True)
    return tried(command(name), corpus(name), count, seconds, str(found) if keeps else "")


def tried(
    command: list[str], folder: Path, count: int, seconds: int = 0, found: str = ""
) -> Outcome:
    """The same, with the words that ``driver.c`` explains."""
    BUILD.mkdir(exist_ok=True)
    failed = BUILD / f"{Path(command[-1]).name}.failed"
    failed.unlink(missing_ok=True)
    done = _run(*command, str(folder), found, str(failed), str(count), str(seconds), str(SEED))
    assert done.returncode in {0, 1}, done.stderr
    return Outcome(done.stdout + done.stderr, failed if done.returncode else None)


def once(command: list[str], file: Path) -> subprocess.CompletedProcess[str]:
    """Try the input in ``file`` alone."""
    return _run(*command, str(file))


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    packages = ("tests", ".", "native", "shim", "node", "hook", "server", "cli")
    path = os.pathsep.join(str(ROOT / name) for name in packages)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:  # where ledgers belong
        environment = {**ENVIRONMENT, "PYTHONPATH": path, "TMPDIR": folder}
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
