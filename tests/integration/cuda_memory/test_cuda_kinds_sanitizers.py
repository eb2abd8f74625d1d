"""The other kinds of memory under sanitizers: threads that compete for one small cap."""

from __future__ import annotations

import os
import platform
import subprocess
from typing import TYPE_CHECKING

import pytest

from lab.driver.cuda_base import MIB, PROGRAMS, ROOT
from lab.driver.cuda_proxied import CONTEXT, make_proxied

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

SANITIZERS = {
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-fsanitize=thread"],
}


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_threads_that_use_every_kind_leave_nothing_and_no_complaint(
    tmp_path: Path, sanitizer: str
) -> None:
    """MEM-1, MEM-6: no race, no deadlock, nothing left on the books."""
    proxied = make_proxied(tmp_path)
    proxied.base.set_cap(CONTEXT + 600 * MIB)
    driver = tmp_path / "driver" / "libcuda.so.1"
    sources = [PROGRAMS / "stress" / "kinds_stress.c"]
    sources += sorted((ROOT / "shim" / "cuda").rglob("*.c"))
    for part in ("shim", "native", "native/ledger", "native/holdings", "native/gate"):
        sources += sorted((ROOT / part).glob("*.c"))
    includes = [f"-iquote{ROOT / part}" for part in ("shim/cuda", "shim", "native")]
    command = [
        *("gcc", "-std=gnu11", "-g", "-O1", *SANITIZERS[sanitizer], *includes),
        *("-fvisibility=hidden", "-ftls-model=initial-exec"),
        f'-DCGPU_BASE="{proxied.base.path}"',
        *("-o", tmp_path / "stress", *sources, driver, "-lpthread", "-ldl"),
    ]
    subprocess.run(command, check=True)
    # ThreadSanitizer needs the address space where it expects it.
    prefix = ["setarch", platform.machine(), "-R"] if sanitizer == "thread" else []
    done = subprocess.run(
        [*prefix, tmp_path / "stress"],
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(driver.parent),
            "CGPU_SIM_MACHINE": str(proxied.machine),
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
