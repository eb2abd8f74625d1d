"""Builds the C tests: each program plain and under each sanitizer, from native's own sources."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parent.parent / "native"
HARNESS = (HERE / "check.c", HERE / "guest.c")
WARNINGS = [
    *("-Wall", "-Wextra", "-Wshadow", "-Wstrict-prototypes", "-Wmissing-prototypes"),
    *("-Wpointer-arith", "-Wwrite-strings", "-Wvla", "-Wconversion", "-Wno-sign-conversion"),
]
VARIANTS = {
    "plain": ["-O2"],
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
    for source in sorted(HERE.glob("*.c")):
        for name in re.findall(r"^TEST\((\w+)\)", source.read_text(encoding="utf-8"), re.MULTILINE):
            found += [Case(source.stem, variant, name) for variant in VARIANTS]
    return found


def _out_of_date(target: Path, inputs: list[Path]) -> bool:
    return not target.exists() or any(p.stat().st_mtime > target.stat().st_mtime for p in inputs)


def build(program: str, variant: str) -> Path:
    """Compile ``program`` with native's sources, unless it is newer than all of them."""
    target = HERE / "_build" / variant / program
    sources = [HERE / f"{program}.c", *HARNESS, *sorted(NATIVE.rglob("*.c"))]
    headers = [*NATIVE.rglob("*.h"), *HERE.glob("*.h"), Path(__file__)]
    if not _out_of_date(target, sources + headers):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{program}.{os.getpid()}")
    wrapped = set(re.findall(r"\b__wrap_(\w+)\(", sources[0].read_text(encoding="utf-8")))
    wrap = [f"-Wl,--wrap={name}" for name in sorted(wrapped)]
    command = [
        *("gcc", "-std=gnu11", "-g", "-Werror", *WARNINGS, *DEFINES, *VARIANTS[variant]),
        *("-iquote", str(NATIVE), "-iquote", str(HERE), "-o", str(temporary)),
        *(*map(str, sources), *wrap, "-lpthread"),
    ]
    subprocess.run(command, check=True)
    temporary.rename(target)
    return target


def run(case: Case, folder: Path) -> None:
    """Run one case with its files in ``folder``; fail with what it printed."""
    # ThreadSanitizer needs the address space where it expects it.
    prefix = ["setarch", platform.machine(), "-R"] if case.variant == "thread" else []
    done = subprocess.run(
        [*prefix, str(build(case.program, case.variant)), case.name],
        env={**ENVIRONMENT, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, f"{case}: exit {done.returncode}\n{done.stdout}{done.stderr}"
