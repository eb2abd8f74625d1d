"""The libcuda proxy under sanitizers: threads, refusals, contexts that come and go."""

from __future__ import annotations

import os
import platform
import subprocess
from typing import TYPE_CHECKING

import pytest

from lab.driver.cuda_base import MIB, PROGRAMS, ROOT, compile_c, lay_out, stub_gpus

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

SANITIZERS = {
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-fsanitize=thread"],
}


def _build(folder: Path, sanitizer: str, program: str) -> Path:
    """The stress program and the proxy in one executable, above the stub driver."""
    flags = (
        str(PROGRAMS / "drivers" / "stub_launch.c"),
        "-shared",
        "-fPIC",
        "-Wl,-soname,libcuda.so.1",
    )
    flags += ("-Wl,-Bsymbolic",)
    stub = compile_c(PROGRAMS / "drivers" / "stub_driver.c", folder / "libcuda.so.1", *flags)
    base = lay_out(folder / "base", stub, stub_gpus(4096 * MIB, 10 * MIB))
    sources = [PROGRAMS / "stress" / f"{program}.c"]
    sources += sorted((ROOT / "shim" / "cuda").rglob("*.c"))
    for part in ("shim", "native", "native/ledger", "native/holdings", "native/gate"):
        sources += sorted((ROOT / part).glob("*.c"))
    includes = [f"-iquote{ROOT / part}" for part in ("shim/cuda", "shim", "native")]
    command = [
        *("gcc", "-std=gnu11", "-g", "-O1", *SANITIZERS[sanitizer], *includes),
        *("-fvisibility=hidden", "-ftls-model=initial-exec", f'-DCGPU_BASE="{base.path}"'),
        *("-o", folder / "stress", *sources, stub, "-lpthread", "-ldl"),
    ]
    subprocess.run(command, check=True)
    return folder / "stress"


@pytest.mark.parametrize("program", ["stress", "stress_gate"])
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_threads_that_use_all_of_it_leave_nothing_and_no_complaint(
    tmp_path: Path, sanitizer: str, program: str
) -> None:
    executable = _build(tmp_path, sanitizer, program)
    # ThreadSanitizer needs the address space where it expects it.
    prefix = ["setarch", platform.machine(), "-R"] if sanitizer == "thread" else []
    done = subprocess.run(
        [*prefix, executable],
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(tmp_path),
            "CGPU_LOG": "off",
            "ASAN_OPTIONS": "detect_leaks=0",
            "TSAN_OPTIONS": "halt_on_error=1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
