"""Takes GPU memory with and past cgpu: ``python bypass.py CAPPED REAL LEDGER``.

CAPPED is the libcuda that programs find, REAL the driver's own, LEDGER the ledger's path. Standard
input says what to do, a line each; each answers with one line of JSON:

    take MIB            a status, of an allocation that is kept
    past MIB            the pid of a child that has taken so much from REAL and keeps it; 0: refused
    lone MIB            the same by the child of a child, whose parent has ended
    end                 end those children
    fill BYTES          how many allocations of so much fit, all of which are kept
    free                MiB, as CAPPED says
    churn SECONDS MIB   how many allocations of up to so much were made and given back, and refused
    ruin                overwrite the ledger with zeros
    forge               write that nothing is held, over the sum that requests are compared with
    confess MIB         take so much from REAL in this very process, and write it into the ledger
    load PATH           load a library; children that are made later load it too
    beside MIB          take so much from REAL in this very process
    cover MIB           mount limits with such a cap over the container's, in namespaces of this
                        process's own; 0 or an error number; only before ``take``
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

MIB = 1 << 20
SUM = 128 + 8  # struct cgpu_ledger_file: gpus[0].used
CAP = 128 + 16  # struct cgpu_limits: gpus[0].cap_bytes
NEW_MOUNTS, NEW_USER, BIND = 0x20000, 0x10000000, 0x1000
CAPPED = REAL = LEDGER = sys.argv[1]
children: list[int] = []
loaded: dict[str, ctypes.CDLL] = {}


def cuda(path: str) -> ctypes.CDLL:
    """The library, with a context on its first GPU."""
    if path not in loaded:
        library, device, context = ctypes.CDLL(path), ctypes.c_int(), ctypes.c_void_p()
        for status in (
            library.cuInit(0),
            library.cuDeviceGet(ctypes.byref(device), 0),
            library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
            library.cuCtxSetCurrent(context),
        ):
            if status != 0:
                sys.exit(f"error {status}")
        loaded[path] = library
    return loaded[path]


def allocate(path: str, size: int) -> tuple[int, ctypes.c_uint64]:
    pointer = ctypes.c_uint64()
    return cuda(path).cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)), pointer


def take(mib: int) -> int:
    return allocate(CAPPED, mib * MIB)[0]


def past(mib: int, how: str = "held") -> int:
    # a program of its own: a fork cannot use a driver that its parent has initialised
    words = [sys.executable, "-I", __file__, REAL, str(mib), how]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as child:
        assert child.stdout is not None
        pid = int(child.stdout.readline())
        child.returncode = 0  # not waited for
    children.append(pid)
    return pid


def lone(mib: int) -> int:
    return past(mib, "lone")


def hold(mib: int, how: str) -> None:
    """What the child does."""
    if how == "lone" and os.fork() != 0:
        os._exit(0)
    status, _ = allocate(REAL, mib * MIB)
    print(0 if status else os.getpid(), flush=True)
    signal.pause()


def end() -> int:
    for pid in children:
        with contextlib.suppress(OSError):  # the audit has ended it, or it is no child of ours
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    children.clear()
    return 0


def free() -> int:
    left, total = ctypes.c_size_t(), ctypes.c_size_t()
    cuda(CAPPED).cuMemGetInfo_v2(ctypes.byref(left), ctypes.byref(total))
    return left.value // MIB


def fill(size: int) -> int:
    count = 0
    while allocate(CAPPED, size)[0] == 0:
        count += 1
    return count


def churn(seconds: int, mib: int) -> list[int]:
    until, done, refused = time.monotonic() + seconds, 0, 0
    while time.monotonic() < until:
        status, pointer = allocate(CAPPED, random.randint(1, mib * MIB))
        refused += status != 0
        if random.random() < 0.5:
            time.sleep(random.random() / 200)
        if status == 0:
            done += cuda(CAPPED).cuMemFree_v2(pointer) == 0
    return [done, refused]


def overwrite(offset: int, size: int) -> int:
    with Path(LEDGER).open("r+b") as file:
        file.seek(offset)
        file.write(bytes(size))
    return 0


def ruin() -> int:
    return overwrite(0, Path(LEDGER).stat().st_size)


def forge() -> int:
    return overwrite(SUM, 8)


def confess(mib: int) -> int:
    status, _ = allocate(REAL, mib * MIB)
    words = array.array("Q", Path(LEDGER).read_bytes())
    before = words[SUM // 8]  # also what the slot of the only process says
    for place, word in enumerate(words):
        if word == before:
            words[place] += mib * MIB
    with Path(LEDGER).open("r+b") as file:
        file.write(words)
    return status


def load(path: str) -> int:
    os.environ["BYPASS_LOADS"] = path
    ctypes.CDLL(path)
    return 0


def beside(mib: int) -> int:
    return allocate(REAL, mib * MIB)[0]


def cover(mib: int) -> int:
    limits, copy = Path(LEDGER).with_name("limits"), Path(f"/tmp/limits-{os.getpid()}")
    content = bytearray(limits.read_bytes())
    content[CAP : CAP + 8] = (mib * MIB).to_bytes(8, sys.byteorder)
    copy.write_bytes(content)
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.unshare(NEW_USER | NEW_MOUNTS) == 0
    done = done and libc.mount(bytes(copy), bytes(limits), None, BIND, None) == 0
    return 0 if done else ctypes.get_errno()


def main() -> None:
    global REAL, LEDGER
    if "BYPASS_LOADS" in os.environ:
        load(os.environ["BYPASS_LOADS"])
    if len(sys.argv) > 3 and sys.argv[3] in {"held", "lone"}:
        hold(int(sys.argv[2]), sys.argv[3])
        return
    REAL, LEDGER = sys.argv[2:4]
    for line in sys.stdin:
        name, *words = line.split()
        values = [int(word) if word.isdigit() else word for word in words]
        print(json.dumps(globals()[name](*values)), flush=True)
    end()


if __name__ == "__main__":
    main()
