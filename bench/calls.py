"""Nanoseconds that the CUDA proxy adds to a driver call, on a driver that does nothing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import cgpu_native
import cgpu_shim
from cgpu_shim.relocation import relocate

HERE = Path(__file__).resolve().parent
BUILD = HERE / "_build"
STUB_UUID = "GPU-11111111-1111-1111-1111-111111111111"
MEMORY = 1 << 46


def _compile() -> tuple[Path, Path]:
    BUILD.mkdir(exist_ok=True)
    stub, program = BUILD / "plain" / "libcuda.so.1", BUILD / "calls"
    stub.parent.mkdir(exist_ok=True)
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-iquote", HERE.parent / "native"]
    shared = ["-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-soname,libcuda.so.1"]
    subprocess.run(["gcc", *flags, *shared, HERE / "stub" / "libcuda.c", "-o", stub], check=True)
    subprocess.run(
        ["gcc", *flags, HERE / "calls.c", "-o", program, "-lpthread", "-ldl"], check=True
    )
    return stub, program


def _lay_out(base: Path, stub: Path) -> Path:
    """Make a session directory: limits, ledger, the stub as the real library, the proxy."""
    shutil.rmtree(base, ignore_errors=True)
    (base / "real").mkdir(parents=True)
    shutil.copy(stub, base / "real" / "libcuda.so.1")
    gpu = cgpu_native.LimitsGpu(
        uuid=STUB_UUID, index=0, cap_bytes=MEMORY, total_bytes=MEMORY, context_bytes=0
    )
    (base / "limits").write_bytes(cgpu_native.pack_limits("bench", [gpu]))
    cgpu_native.create_ledger(base, "ledger")
    proxy = base / "libcuda.so.1"
    proxy.write_bytes(relocate(Path(cgpu_shim.library(proxy.name)).read_bytes(), str(base)))
    return proxy


def measure() -> dict[str, dict[str, float]]:
    """Return medians in nanoseconds: plain_ns, proxied_ns and added_ns for each call."""
    stub, program = _compile()
    proxy = _lay_out(BUILD / "session", stub)
    run = subprocess.run(
        [program, stub, proxy, proxy.with_name("limits")],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    figures: dict[str, dict[str, float]] = json.loads(run.stdout)
    return figures


if __name__ == "__main__":
    json.dump(measure(), sys.stdout, indent=2)
