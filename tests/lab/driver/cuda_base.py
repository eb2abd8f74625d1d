"""A container's base directory, without a container: limits, ledger, driver, relocated proxy."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

from cgpu_native import Ledger, Limits, LimitsGpu, create_ledger, pack_limits
from cgpu_shim.relocation import relocate
from lab.runs import counted
from lab.runs.children import Child

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = ROOT / "tests" / "programs"
MIB = 1 << 20
STUB_UUIDS = tuple(f"GPU-{n}-{n[:4]}-{n[:4]}-{n[:4]}-{n}{n[:4]}" for n in ("01010101", "02020202"))


class Outcome(NamedTuple):
    """What a program printed, line by line, and how it ended."""

    code: int
    out: list[str]
    log: str


class Base(NamedTuple):
    """The directory that stands for ``/dev/cgpu``, and programs run below its proxy."""

    path: Path

    @property
    def proxy(self) -> Path:
        """The relocated libcuda proxy."""
        return self.path / "lib" / "libcuda.so.1"

    def used(self, gpu: int = 0) -> int:
        """Bytes that living processes hold on the GPU, as the host sees it."""
        with Ledger.observe(self.path / "ledger") as ledger:
            return ledger.read_used(gpu)

    def set_cap(self, cap: int, gpu: int = 0) -> None:
        """Change the cap in place while programs run."""
        offset = 128 + gpu * 128 + 16  # struct cgpu_limits: gpus[gpu].cap_bytes
        with (self.path / "limits").open("r+b") as file:
            file.seek(offset)
            file.write(cap.to_bytes(8, "little"))

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of a program that uses the driver through the proxy."""
        folders = (ROOT / "tests", ROOT / "native", ROOT)
        return os.environ | {
            "LD_LIBRARY_PATH": str(self.path / "lib"),
            "CGPU_PROXY": str(self.proxy),
            "CGPU_TEST_LEDGER": str(self.path / "ledger"),
            "PYTHONPATH": os.pathsep.join(map(str, folders)),
            **more,
        }

    def start(self, program: str, *arguments: str, **env: str) -> Child:
        """Start Python code that finds the driver as ``cuda``."""
        prelude = "import sys, os, ctypes\nfrom lab.calls.cuda_calls import *\n"
        program = textwrap.dedent(program)
        command = [sys.executable, "-c", prelude + program, *arguments]
        return Child(command, self.environment(**env))

    def run(self, program: str, *arguments: str, **env: str) -> Outcome:
        """Run Python code that finds the driver as ``cuda`` to its end."""
        with self.start(program, *arguments, **env) as process:
            out, log = process.communicate(timeout=120)
        return Outcome(process.returncode, out.splitlines(), log)

    def check(self, program: str, *arguments: str, **env: str) -> Outcome:
        """Like ``run``; the program must end well."""
        outcome = self.run(program, *arguments, **env)
        assert outcome.code == 0, outcome
        return outcome


def lay_out(path: Path, library: Path, gpus: list[LimitsGpu], flags: int = 0) -> Base:
    """Make a base directory at ``path`` whose real driver is ``library``."""
    for folder in ("real", "lib"):
        (path / folder).mkdir(parents=True)
    (path / "real" / "libcuda.so.1").symlink_to(library)
    (path / "limits").write_bytes(pack_limits("test", gpus, flags=flags))
    create_ledger(path, "ledger")
    proxy = counted.proxy("libcuda.so.1").read_bytes()
    (path / "lib" / "libcuda.so.1").write_bytes(relocate(proxy, str(path)))
    return Base(path)


STUB_CAP = 100 * MIB
STUB_CONTEXT = 10 * MIB


def stub_gpus(cap: int, context: int = 0) -> list[LimitsGpu]:
    """The two GPUs of the stub driver, each with the same cap."""
    return [LimitsGpu(uuid, index, cap, 16 << 30, context) for index, uuid in enumerate(STUB_UUIDS)]


def compile_c(source: Path, target: Path, *flags: str) -> Path:
    """Compile one C file of the tests, for this machine."""
    command = ["gcc", "-std=gnu11", "-O1", "-o", target, source, *flags]
    subprocess.run(command, check=True)
    return target


__all__ = [
    "MIB",
    "STUB_CAP",
    "STUB_CONTEXT",
    "Base",
    "Limits",
    "Outcome",
    "compile_c",
    "lay_out",
    "stub_gpus",
]
