"""A program that uses a GPU, for the demonstration: ``python tenant.py [NVIDIA_SMI]``.

It does what it is told line by line: ``show`` (nvidia-smi), ``use`` (one line), ``alloc MIB``.
Standard library only, on the driver's own interface, so that it runs anywhere and on any driver.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

_MIB = 1 << 20
_OUT_OF_MEMORY = 2


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_uint64),
        ("free", ctypes.c_uint64),
        ("used", ctypes.c_uint64),
    )


class Gpu:
    """GPU 0 of this process, with a context made at the first allocation."""

    def __init__(self) -> None:
        self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self._cuda: ctypes.CDLL | None = None

    def use(self) -> str:
        """Name and memory, used and total, as NVML gives them (and so nvidia-smi prints them)."""
        handle, memory = ctypes.c_void_p(), _Memory()
        name = ctypes.create_string_buffer(96)
        _check(self._nvml.nvmlInit_v2(), "nvmlInit")
        _check(self._nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)), "no GPU 0")
        _check(self._nvml.nvmlDeviceGetName(handle, name, 96), "nvmlDeviceGetName")
        status = self._nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
        _check(status, "nvmlDeviceGetMemoryInfo")
        used, total = memory.used // _MIB, memory.total // _MIB
        return f"GPU 0: {name.value.decode()}  {used}MiB / {total}MiB"

    def alloc(self, mib: int) -> str:
        """Allocate, and keep; a refusal is told, not raised."""
        cuda = self._initialised()
        pointer = ctypes.c_uint64()
        status = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(mib * _MIB))
        if status == _OUT_OF_MEMORY:
            return f"cuMemAlloc of {mib} MiB: CUDA_ERROR_OUT_OF_MEMORY"
        _check(status, "cuMemAlloc")
        return f"cuMemAlloc of {mib} MiB: success"

    def _initialised(self) -> ctypes.CDLL:
        if self._cuda is None:
            self._cuda = ctypes.CDLL("libcuda.so.1")
            device, context = ctypes.c_int(), ctypes.c_void_p()
            _check(self._cuda.cuInit(0), "cuInit")
            _check(self._cuda.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
            retained = self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
            _check(retained, "cuDevicePrimaryCtxRetain")
            _check(self._cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
        return self._cuda


def _check(status: int, what: str) -> None:
    if status != 0:
        sys.exit(f"{what}: error {status}")


def main() -> None:
    """Obey standard input; every answer ends with an empty line."""
    os.dup2(1, 2)  # what the driver or cgpu says stands with the answer that it belongs to
    gpu = Gpu()
    nvidia_smi = sys.argv[1] if len(sys.argv) > 1 else ""
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "show" and nvidia_smi:
            print(subprocess.check_output([nvidia_smi], text=True).strip())
        elif word == "alloc":
            print(gpu.alloc(int(rest[0])))
        else:
            print(gpu.use())
        print(flush=True)


if __name__ == "__main__":
    main()
    os._exit(0)  # a driver's own exit handlers are no part of the demonstration
