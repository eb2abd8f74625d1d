"""Take all memory up to the cap and ask for more, again and again, and launch kernels in between.

For every line of input one of JSON: the rounds so far, the rounds in which another status came
than CUDA_ERROR_OUT_OF_MEMORY or less or more was had than was free, and the file that
libcuda.so.1 is mapped from. Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from pathlib import Path

CHUNK = 64 << 20
OUT_OF_MEMORY = 2
PAUSE = 0.02  # seconds, for the other programs of the machine
KERNEL = (
    b".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry spin_100us()\n{\n ret;\n}\n"
)


def check(status: int) -> None:
    if status != 0:
        sys.exit(f"status {status}")


class Program:
    """One context of GPU 0, and what became of its rounds."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.context, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        self.rounds, self.wrong = 0, 0
        device, module = ctypes.c_int(), ctypes.c_void_p()
        check(self.cuda.cuInit(0))
        check(self.cuda.cuDeviceGet(ctypes.byref(device), 0))
        check(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), device))
        check(self.cuda.cuCtxSetCurrent(self.context))
        check(self.cuda.cuModuleLoadData(ctypes.byref(module), KERNEL))
        name = b"spin_100us"
        check(self.cuda.cuModuleGetFunction(ctypes.byref(self.function), module, name))

    def go_on(self) -> None:
        check(self.cuda.cuCtxSetCurrent(self.context))
        while True:
            free = self.free()
            taken, status = self.take()
            fits = len(taken) * CHUNK <= free < (len(taken) + 1) * CHUNK
            self.wrong += status != OUT_OF_MEMORY or not fits
            for pointer in taken:
                check(self.cuda.cuMemFree_v2(pointer))
            for _ in range(50):
                check(self.cuda.cuLaunchKernel(self.function, *[1] * 6, 0, None, None, None))
            check(self.cuda.cuCtxSynchronize())
            self.rounds += 1
            time.sleep(PAUSE)

    def free(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        check(self.cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
        return free.value

    def take(self) -> tuple[list[ctypes.c_uint64], int]:
        taken: list[ctypes.c_uint64] = []
        while True:
            pointer = ctypes.c_uint64()
            status = self.cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(CHUNK))
            if status != 0:
                return taken, status
            taken.append(pointer)


def mapped() -> list[int]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted({int(line.split()[4]) for line in lines if line.endswith("libcuda.so.1")})


def main() -> None:
    program = Program()
    threading.Thread(target=program.go_on, daemon=True).start()
    for _ in sys.stdin:
        output = {"rounds": program.rounds, "wrong": program.wrong, "mapped": mapped()}
        print(json.dumps(output), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
