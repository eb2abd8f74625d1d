"""Take GPU memory until refused: ``python fill_memory.py DRIVER_DIR [HOW [PROCESSES [keep|die]]]``.

HOW names the way to libcuda: ``soname``, ``path`` (absolute), ``link`` (through another symbolic
link) or ``dlmopen``. Several PROCESSES begin at once and keep what they got until all are done;
each prints as JSON what it was shown and what it got. ``keep``: hold it until standard input ends;
``die`` by SIGKILL instead of giving it back.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
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
        with tempfile.TemporaryDirectory() as folder:
            link = Path(folder, "lib")
            link.symlink_to(path)
            return ctypes.CDLL(str(link))
    if how == "dlmopen":
        libc = ctypes.CDLL(None)
        libc.dlmopen.restype = ctypes.c_void_p
        handle = libc.dlmopen(ctypes.c_long(-1), path.encode(), os.RTLD_NOW)
        return ctypes.CDLL(path, handle=handle)
    return ctypes.CDLL(path)


def initialise(cuda: ctypes.CDLL) -> dict[str, int]:
    """Make a context on device 0, and tell what the driver says of it."""
    device, context, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
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
    return {"gpus": count.value, "total": total.value // MIB, "uid": os.getuid()}


def take(cuda: ctypes.CDLL) -> dict[str, int]:
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
            return {"got": got, "status": status}


class Meeting:
    """Where several processes wait until each of them has come."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.arrivals, self.gate = os.pipe(), os.pipe()

    def wait(self) -> None:
        os.write(self.arrivals[1], b".")
        os.read(self.gate[0], 1)

    def lead(self) -> None:
        for _ in range(self.count):
            os.read(self.arrivals[0], 1)
        os.write(self.gate[1], b"." * self.count)


def fill(driver: str, how: str, start: Meeting, end: Meeting) -> None:
    cuda = load("libcuda.so.1", driver, how)
    shown = initialise(cuda)
    start.wait()
    print(json.dumps({**shown, **take(cuda)}), flush=True)  # noqa: T201
    if "keep" in sys.argv:
        sys.stdin.read()
    if "die" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    end.wait()


def main() -> None:
    how = sys.argv[2] if len(sys.argv) > 2 else "path"
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    meetings = Meeting(count), Meeting(count)
    for _ in range(count):
        if os.fork() == 0:
            fill(sys.argv[1], how, *meetings)
            os._exit(0)
    meetings[0].lead()
    if "die" not in sys.argv:
        meetings[1].lead()
    for _ in range(count):
        os.wait()


if __name__ == "__main__":
    main()
