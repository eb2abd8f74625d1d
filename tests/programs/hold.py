"""Hold 100 MiB of the first visible GPU until standard input ends."""

from __future__ import annotations

import ctypes
import sys

cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
for status in (
    cuda.cuInit(0),
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
    cuda.cuCtxSetCurrent(context),
    cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(100 << 20)),
):
    if status != 0:
        sys.exit(f"error {status}")
print("held", flush=True)  # noqa: T201
sys.stdin.read()
