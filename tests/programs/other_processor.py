"""Fills a container's share through both proxies, with nothing but what is installed.

``other_processor.py DIR``: a simulated driver and a container's base directory are made there.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import sys
from ctypes import byref, c_size_t, c_uint64, c_ulonglong, c_void_p
from pathlib import Path

import cgpu_shim
from cgpu_native import Ledger, LimitsGpu, create_ledger, pack_limits
from cgpu_shim.relocation import relocate
from cgpu_sim import TESLA_T4, make_driver_dir

MIB = 1 << 20
CAP, CONTEXT, BLOCK = 6043 * MIB, 105 * MIB, 100 * MIB
UUID = "GPU-11111111-2222-3333-4444-555555555555"
NAMES = ("libcuda.so.1", "libnvidia-ml.so.1")


class Memory(ctypes.Structure):
    _fields_ = [(name, c_ulonglong) for name in ("total", "free", "used")]


def lay_out(folder: Path) -> Path:
    driver, base = folder / "driver", folder / "base"
    make_driver_dir(driver, [TESLA_T4._replace(uuid=UUID)])
    os.environ["CGPU_SIM_MACHINE"] = str(driver / "machine")
    for name in ("real", "lib"):
        (base / name).mkdir(parents=True)
    for name in NAMES:
        (base / "real" / name).symlink_to(driver / name)
        proxy = Path(cgpu_shim.library(name)).read_bytes()
        (base / "lib" / name).write_bytes(relocate(proxy, str(base)))
    gpu = LimitsGpu(UUID, 0, CAP, TESLA_T4.mib * MIB, CONTEXT)
    (base / "limits").write_bytes(pack_limits("test", [gpu]))
    create_ledger(base, "ledger")
    return base


def check(status: int) -> None:
    if status != 0:
        raise SystemExit(f"status {status}")


def used(base: Path) -> int:
    with Ledger.observe(base / "ledger") as ledger:
        return ledger.read_used(0) // MIB


def fill(cuda: ctypes.CDLL) -> tuple[list[c_uint64], int]:
    context, blocks = c_void_p(), []
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))
    while True:
        block = c_uint64()
        status = cuda.cuMemAlloc_v2(byref(block), c_size_t(BLOCK))
        if status != 0:
            return blocks, status
        blocks.append(block)


def shown(nvml: ctypes.CDLL) -> Memory:
    handle, memory = c_void_p(), Memory()
    check(nvml.nvmlInit_v2())
    check(nvml.nvmlDeviceGetHandleByIndex_v2(0, byref(handle)))
    check(nvml.nvmlDeviceGetMemoryInfo(handle, byref(memory)))
    return memory


base = lay_out(Path(sys.argv[1]))
cuda, nvml = (ctypes.CDLL(str(base / "lib" / name)) for name in NAMES)
blocks, status = fill(cuda)
memory, full = shown(nvml), used(base)
for block in blocks:
    check(cuda.cuMemFree_v2(block))
seen = {
    "machine": platform.machine(),
    "refused": status,
    "full": full,
    "shown": [memory.used // MIB, memory.total // MIB],
    "left": used(base),
}
sys.stdout.write(json.dumps(seen))
