"""A program that uses a GPU, for the demonstration: ``python tenant.py [NVIDIA_SMI]``.

It obeys one order a line: ``show`` (nvidia-smi), ``use`` (one line), ``alloc MIB``, ``compute US``
(kernels of that length, one after the other, until ``rest``). It needs only the standard library
and the driver's own interface, so that it runs anywhere and on any driver.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time

_MIB = 1 << 20
_OUT_OF_MEMORY = 2
# This kernel runs until a time by the GPU's clock. A simulated GPU takes the length from its name.
_KERNEL = """
.version 6.0
.target sm_50
.address_size 64
.visible .entry spin_{us}us()
{{
    .reg .u64 %now, %end;
    .reg .pred %early;
    mov.u64 %now, %globaltimer;
    add.u64 %end, %now, {us}000;
again:
    mov.u64 %now, %globaltimer;
    setp.lt.u64 %early, %now, %end;
    @%early bra again;
    ret;
}}
"""


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_uint64),
        ("free", ctypes.c_uint64),
        ("used", ctypes.c_uint64),
    )


class TenantGpu:
    """GPU 0 of this process, with a context made at the first allocation."""

    def __init__(self) -> None:
        self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self._cuda: ctypes.CDLL | None = None
        self._context = ctypes.c_void_p()
        self._worker: threading.Thread | None = None
        self._resting = threading.Event()
        self._done = ""

    def describe_memory(self) -> str:
        """Return name and memory, used and total, as NVML and therefore nvidia-smi report them."""
        handle, memory = ctypes.c_void_p(), _Memory()
        name = ctypes.create_string_buffer(96)
        _check_status(self._nvml.nvmlInit_v2(), "nvmlInit")
        _check_status(self._nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)), "no GPU 0")
        _check_status(self._nvml.nvmlDeviceGetName(handle, name, 96), "nvmlDeviceGetName")
        status = self._nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
        _check_status(status, "nvmlDeviceGetMemoryInfo")
        used, total = memory.used // _MIB, memory.total // _MIB
        return f"GPU 0: {name.value.decode()}  {used}MiB / {total}MiB"

    def alloc(self, mib: int) -> str:
        """Allocate memory, and keep it. A refusal is returned as text, not raised."""
        cuda = self._init_cuda()
        pointer = ctypes.c_uint64()
        status = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(mib * _MIB))
        if status == _OUT_OF_MEMORY:
            return f"cuMemAlloc of {mib} MiB: CUDA_ERROR_OUT_OF_MEMORY"
        _check_status(status, "cuMemAlloc")
        return f"cuMemAlloc of {mib} MiB: success"

    def start_kernels(self, us: int) -> str:
        """Begin to launch kernels, as many as the GPU takes."""
        cuda = self._init_cuda()
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        image = _KERNEL.format(us=us).encode()
        _check_status(cuda.cuModuleLoadData(ctypes.byref(module), image), "cuModuleLoadData")
        name = f"spin_{us}us".encode()
        got = cuda.cuModuleGetFunction(ctypes.byref(function), module, name)
        _check_status(got, "cuModuleGetFunction")
        self._worker = threading.Thread(target=self._launch_kernels, args=(cuda, function, us))
        self._worker.start()
        return f"launching kernels of {us} us, one after the other"

    def stop_kernels(self) -> str:
        """Stop launching, and return how many kernels ran."""
        if self._worker is None:
            return "did not compute"
        self._resting.set()
        self._worker.join()
        return self._done

    def _launch_kernels(self, cuda: ctypes.CDLL, function: ctypes.c_void_p, us: int) -> None:
        began, count = time.monotonic(), 0
        _check_status(cuda.cuCtxSetCurrent(self._context), "cuCtxSetCurrent")
        while not self._resting.is_set():
            for _ in range(10):
                status = cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
                _check_status(status, "cuLaunchKernel")
            count += 10
            _check_status(cuda.cuCtxSynchronize(), "cuCtxSynchronize")
        self._done = f"{count} kernels of {us} us in {time.monotonic() - began:.1f} s"

    def _init_cuda(self) -> ctypes.CDLL:
        if self._cuda is None:
            self._cuda = ctypes.CDLL("libcuda.so.1")
            device, context = ctypes.c_int(), self._context
            _check_status(self._cuda.cuInit(0), "cuInit")
            _check_status(self._cuda.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
            retained = self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
            _check_status(retained, "cuDevicePrimaryCtxRetain")
            _check_status(self._cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
        return self._cuda


def _check_status(status: int, call: str) -> None:
    if status != 0:
        sys.exit(f"{call}: error {status}")


def main() -> None:
    """Obey the orders on standard input. Every answer ends with an empty line."""
    os.dup2(1, 2)  # so that messages of the driver or cgpu come with the answer that they belong to
    gpu = TenantGpu()
    nvidia_smi = sys.argv[1] if len(sys.argv) > 1 else ""
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "show" and nvidia_smi:
            print(subprocess.check_output([nvidia_smi], text=True).strip())
        elif word == "alloc":
            print(gpu.alloc(int(rest[0])))
        elif word == "compute":
            print(gpu.start_kernels(int(rest[0])))
        elif word == "rest":
            print(gpu.stop_kernels())
        else:
            print(gpu.describe_memory())
        print(flush=True)


if __name__ == "__main__":
    main()
    os._exit(0)  # skip the driver's exit handlers, which are no part of the demonstration
