"""Builds the C tests: each program plain and under each sanitizer, from native's own sources."""

from __future__ import annotations

import fcntl
import os
import platform
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
NATIVE = ROOT / "native"
BUILD = HERE / "_build"
PROGRAMS = {path.stem: path for path in sorted(HERE.glob("[a-z]*/*.c"))}
# What every program is linked with, beside its own file.
SHARED = (HERE / "check.c", HERE / "guest.c", *sorted(NATIVE.rglob("*.c")))
WARNINGS = [
    *("-Wall", "-Wextra", "-Wshadow", "-Wstrict-prototypes", "-Wmissing-prototypes"),
    *("-Wpointer-arith", "-Wwrite-strings", "-Wvla", "-Wconversion", "-Wno-sign-conversion"),
]
VARIANTS = {
    "plain": ["-O2", "--coverage", "-fprofile-update=atomic"],  # `make test` reports the lines
    "address": ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-O1", "-fsanitize=thread"],
}
ENVIRONMENT = {
    **os.environ,
    "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0",
    "TSAN_OPTIONS": "halt_on_error=1:die_after_fork=0",
}
# A lock that stays with a living process is given up soon: a test waits for that.
DEFINES = ["-DCGPU_LOCK_PATIENCE_MS=1000"]


class Case(NamedTuple):
    """One ``TEST`` of one program in one build variant."""

    program: str
    variant: str
    name: str


def cases() -> list[Case]:
    """Every test of every program, in every variant."""
    found = []
    for program, source in PROGRAMS.items():
        for name in re.findall(r"^TEST\((\w+)\)", source.read_text(encoding="utf-8"), re.MULTILINE):
            found += [Case(program, variant, name) for variant in VARIANTS]
    return found


def _out_of_date(target: Path, inputs: list[Path]) -> bool:
    return not target.exists() or any(p.stat().st_mtime > target.stat().st_mtime for p in inputs)


def _gcc(variant: str, target: Path, inputs: list[Path], *options: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    command = [
        *("gcc", "-std=gnu11", "-g", "-Werror", *WARNINGS, *DEFINES, *VARIANTS[variant]),
        *("-iquote", str(NATIVE), "-iquote", str(HERE), "-o", str(temporary)),
        *(*map(str, inputs), *options),
    ]
    subprocess.run(command, check=True)
    temporary.rename(target)


def _object(variant: str, source: Path) -> Path:
    return BUILD / variant / "objects" / source.relative_to(ROOT).with_suffix(".o")


def _compile(variant: str, source: Path) -> None:
    """Compile ``source`` unless its object is newer than it and every header."""
    target = _object(variant, source)
    headers = [*NATIVE.rglob("*.h"), *HERE.rglob("*.h"), Path(__file__)]
    if _out_of_date(target, [source, *headers]):
        _gcc(variant, target, [source], "-c")


def _link(variant: str, program: str) -> None:
    """Link ``program`` unless it is newer than every object of it."""
    target = BUILD / variant / program
    source = PROGRAMS[program]
    objects = [_object(variant, each) for each in (source, *SHARED)]
    if _out_of_date(target, objects):
        wrapped = set(re.findall(r"\b__wrap_(\w+)\(", source.read_text(encoding="utf-8")))
        _gcc(variant, target, objects, *(f"-Wl,--wrap={n}" for n in sorted(wrapped)), "-lpthread")


def build(programs: set[tuple[str, str]]) -> None:
    """Build each program, given with its variant: what several share is compiled once."""
    sources = {(v, s) for p, v in programs for s in (PROGRAMS[p], *SHARED)}
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "lock").open("w") as lock, ThreadPoolExecutor(os.cpu_count()) as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)  # who runs beside us waits, and finds it built
        list(pool.map(lambda each: _compile(*each), sorted(sources)))
        list(pool.map(lambda each: _link(each[1], each[0]), sorted(programs)))


def run(case: Case, folder: Path) -> None:
    """Run one case with its files in ``folder``; fail with what it printed."""
    # ThreadSanitizer needs the address space where it expects it.
    prefix = ["setarch", platform.machine(), "-R"] if case.variant == "thread" else []
    done = subprocess.run(
        [*prefix, str(BUILD / case.variant / case.program), case.name],
        env={**ENVIRONMENT, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, f"{case}: exit {done.returncode}\n{done.stdout}{done.stderr}"
