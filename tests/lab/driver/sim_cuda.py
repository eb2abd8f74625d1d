"""A simulated driver, and programs that use it by ctypes as processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

from cgpu_sim import TESLA_T4, Fault, Gpu, inject, make_driver_dir
from lab.runs.children import Child

MIB = 1 << 20
CONTEXT = 105 * MIB

PRELUDE = """
import ctypes, os, sys, time
from ctypes import byref, c_char, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
MIB = 1 << 20
cuda = ctypes.CDLL("libcuda.so.1")

def show(*values):
    print(*values, flush=True)

def check(status):
    if status != 0:
        raise SystemExit(f"CUDA status {status}")

def start(device=0):
    check(cuda.cuInit(0))
    context = c_void_p()
    check(cuda.cuDevicePrimaryCtxRetain(byref(context), device))
    check(cuda.cuCtxSetCurrent(context))
    return context

def made(call, *arguments, kind=c_void_p):
    out = kind()
    check(call(byref(out), *arguments))
    return out

def alloc(size):
    out = c_uint64()
    status = cuda.cuMemAlloc_v2(byref(out), c_size_t(size))
    return status, out.value

def free(address):
    return cuda.cuMemFree_v2(c_uint64(address))

def used():
    free, total = c_size_t(), c_size_t()
    check(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
    return total.value - free.value

def used_mib():
    return used() / MIB

PTX = b'''.version 7.0
.target sm_75
.address_size 64
.global .align 4 .b8 table[64];
.global .attribute(.managed) .align 4 .u32 shared_word;
.visible .entry spin_2000us(.param .u64 x) { ret; }
.visible .entry spin_100000us() { ret; }
.visible .entry plain() { ret; }
\\0'''

def kernel(name=b"spin_2000us"):
    module = made(cuda.cuModuleLoadData, PTX)
    return made(cuda.cuModuleGetFunction, module, name)

def launch(function, stream=None):
    return cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, None, None)
"""


class Outcome(NamedTuple):
    """What a program printed, line by line, and how it ended."""

    code: int
    out: list[str]
    log: str


class Driver(NamedTuple):
    """A driver directory."""

    path: Path

    def fail(self, fault: Fault) -> None:
        """Inject a fault."""
        inject(self.path, fault)

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of a program on this driver."""
        return os.environ | {"LD_LIBRARY_PATH": str(self.path), **more}

    def start(self, program: str, *arguments: str, **env: str) -> Child:
        """Start Python code below ``PRELUDE``."""
        command = [sys.executable, "-c", PRELUDE + textwrap.dedent(program), *arguments]
        return Child(command, self.environment(**env))

    def run(self, program: str, *arguments: str, **env: str) -> Outcome:
        """Run Python code below ``PRELUDE`` to its end."""
        with self.start(program, *arguments, **env) as process:
            out, log = process.communicate(timeout=120)
        return Outcome(process.returncode, out.splitlines(), log)

    def check(self, program: str, *arguments: str, **env: str) -> list[str]:
        """Lines that the code prints; it must end well."""
        outcome = self.run(program, *arguments, **env)
        assert outcome.code == 0, outcome
        return outcome.out


def make_driver(path: Path, *gpus: Gpu) -> Driver:
    """A driver with ``gpus``, or one Tesla T4."""
    return Driver(make_driver_dir(path, gpus or (TESLA_T4,)))


def read(process: subprocess.Popen[str]) -> str:
    """The next line that a running program prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str], line: str) -> None:
    """Send a line to a running program."""
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def ask(process: subprocess.Popen[str], line: str) -> str:
    """What a running program prints for a line."""
    tell(process, line)
    return read(process)


__all__ = [
    "CONTEXT",
    "MIB",
    "PRELUDE",
    "Driver",
    "Fault",
    "Gpu",
    "Outcome",
    "make_driver",
    "read",
    "tell",
]
