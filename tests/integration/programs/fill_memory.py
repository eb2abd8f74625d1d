"""Take GPU memory MiB by MiB until refused: ``python fill_memory.py DRIVER_DIR [HOW]``.

HOW names the way to libcuda: ``soname``, ``path`` (absolute), ``link`` (through another symbolic
link) or ``dlmopen``. Prints as JSON what it was shown and what it got.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
from pathlib import Path

MIB = 1 << 20
CHUNK = 64


def load(soname: str, driver: str, how: str) -> ctypes.CDLL:
    path = f"{driver}/{soname}"
    if how == "soname":
        return ctypes.CDLL(soname)
    if how == "link":
        link = Path(tempfile.mkdtemp(), "lib")
        link.symlink_to(path)
        return ctypes.CDLL(str(link))
    if how == "dlmopen":
        libc = ctypes.CDLL(None)
        libc.dlmopen.restype = ctypes.c_void_p
        handle = libc.dlmopen(ctypes.c_long(-1), path.encode(), os.RTLD_NOW)
        return ctypes.CDLL(path, handle=handle)
    return ctypes.CDLL(path)


def take(cuda: ctypes.CDLL) -> tuple[int, int]:
    """How many MiB in all, and the status that ended it."""
    got, size = 0, CHUNK * MIB
    while True:
        pointer = ctypes.c_uint64()
        status = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size))
        if status == 0:
            got += size // MIB
        elif size > MIB:
            size //= 2
        else:
            return got, status


def main() -> None:
    driver, how = sys.argv[1], (sys.argv[2] if len(sys.argv) > 2 else "path")
    cuda = load("libcuda.so.1", driver, how)
    device, context = ctypes.c_int(), ctypes.c_void_p()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    count = ctypes.c_int()
    for status in (
        cuda.cuInit(0),
        cuda.cuDeviceGetCount(ctypes.byref(count)),
        cuda.cuDeviceGet(ctypes.byref(device), 0),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
        cuda.cuCtxSetCurrent(context),
        cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)),
    ):
        if status != 0:
            sys.exit(f"error {status}")
    got, status = take(cuda)
    answer = {"gpus": count.value, "total": total.value // MIB, "got": got, "status": status}
    print(json.dumps({**answer, "uid": os.getuid()}), flush=True)  # noqa: T201
    if how == "keep" or "--keep" in sys.argv:
        sys.stdin.read()


if __name__ == "__main__":
    main()
    os._exit(0)
