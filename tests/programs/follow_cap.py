"""Do what standard input says, one word or two on a line: ``python follow_cap.py DRIVER_DIR``.

``info`` prints what cuMemGetInfo says, free and total; ``take BYTES`` the status of cuMemAlloc;
``free`` gives all of it back.
"""

from __future__ import annotations

import ctypes
import sys


def main() -> None:
    cuda = ctypes.CDLL(f"{sys.argv[1]}/libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    taken = []
    for line in sys.stdin:
        command, *rest = line.split()
        if command == "info":
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
            print(free.value, total.value, flush=True)  # noqa: T201
        elif command == "take":
            pointer = ctypes.c_uint64()
            status = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(rest[0])))
            taken += [pointer] if status == 0 else []
            print(status, flush=True)  # noqa: T201
        else:
            print(sum(cuda.cuMemFree_v2(pointer) for pointer in taken), flush=True)  # noqa: T201
            taken = []


if __name__ == "__main__":
    main()
