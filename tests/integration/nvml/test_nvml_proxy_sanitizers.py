"""The NVML proxy under sanitizers: threads, and more devices than it remembers."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import pytest

from lab.driver.cuda_base import compile_c
from lab.driver.nvml_base import MIB, PROGRAMS, ROOT, SONAME, Gpu, lay_out

pytestmark = pytest.mark.integration

SANITIZERS = {
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-fsanitize=thread"],
}
PARTS = ("shim/nvml", "shim", "native", "native/ledger", "native/holdings", "native/gate")


def build(folder: Path, sanitizer: str) -> Path:
    """The stress program and the proxy in one executable, above the stub driver."""
    flags = ("-shared", "-fPIC", f"-Wl,-soname,{SONAME}", "-Wl,-Bsymbolic")
    stub = compile_c(PROGRAMS / "drivers" / "reentrant_nvml.c", folder / SONAME, *flags)
    gpus = [Gpu(number=n).limited(1, 1)._replace(cap_bytes=(n + 1) * MIB) for n in range(2)]
    base = lay_out(folder / "base", folder, gpus)
    sources = [PROGRAMS / "stress" / "stress_nvml.c"]
    for part in PARTS:
        sources += sorted((ROOT / part).glob("*.c"))
    command = [
        *("gcc", "-std=gnu11", "-g", "-O1", *SANITIZERS[sanitizer]),
        *(f"-iquote{ROOT / part}" for part in PARTS),
        *("-fvisibility=hidden", "-ftls-model=initial-exec", f'-DCGPU_BASE="{base.path}"'),
        *("-o", folder / "stress", *sources, stub, "-lpthread", "-ldl"),
    ]
    subprocess.run(command, check=True)
    return folder / "stress"


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_threads_agree_on_every_device_without_complaint(tmp_path: Path, sanitizer: str) -> None:
    program = build(tmp_path, sanitizer)
    # ThreadSanitizer needs the address space where it expects it.
    prefix = ["setarch", platform.machine(), "-R"] if sanitizer == "thread" else []
    done = subprocess.run(
        [*prefix, program],
        env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "TSAN_OPTIONS": "halt_on_error=1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done
    assert done.stdout == "0 failures\n"
