"""The driver through the proxy, by ctypes, for programs that tests start as own processes."""

from __future__ import annotations

import ctypes
import os
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from cgpu_native import Ledger

MIB = 1 << 20
cuda = ctypes.CDLL(os.environ["CGPU_PROXY"])


def check(status: int) -> None:
    """End the program if a call failed that must not."""
    if status != 0:
        raise SystemExit(f"CUDA status {status}")


def context(device: int = 0) -> c_void_p:
    """Initialise the driver and make a context current."""
    check(cuda.cuInit(0))
    made = c_void_p()
    check(cuda.cuCtxCreate_v2(byref(made), 0, device))
    return made


def alloc(size: int) -> tuple[int, int]:
    """Status and address of a linear allocation."""
    address = c_uint64()
    status = cuda.cuMemAlloc_v2(byref(address), c_size_t(size))
    return status, address.value


def free(address: int) -> int:
    """Status of freeing linear memory."""
    return int(cuda.cuMemFree_v2(c_uint64(address)))


def memory() -> tuple[int, int]:
    """Free and total bytes as the program is shown them."""
    available, total = c_size_t(), c_size_t()
    check(cuda.cuMemGetInfo_v2(byref(available), byref(total)))
    return available.value, total.value


def left() -> int:
    """Free bytes as the program is shown them."""
    return memory()[0]


def used(gpu: int = 0) -> int:
    """Bytes that the container holds, as the host sees it."""
    with Ledger.observe(os.environ["CGPU_TEST_LEDGER"]) as ledger:
        return ledger.read_used(gpu)


def charged(gpu: int = 0) -> int:
    """Bytes that the ledger charges to this process."""
    with Ledger.observe(os.environ["CGPU_TEST_LEDGER"]) as ledger:
        return sum(
            each.used_bytes for each in ledger.list_processes(gpu) if each.pid == os.getpid()
        )


def driver() -> ctypes.CDLL:
    """The driver past the proxy."""
    return ctypes.CDLL(str(Path(os.environ["CGPU_PROXY"]).parent.parent / "real" / "libcuda.so.1"))


def truth() -> int:
    """Bytes of the current GPU that the driver itself says are taken, by whomever."""
    available, total = c_size_t(), c_size_t()
    check(driver().cuMemGetInfo_v2(byref(available), byref(total)))
    return total.value - available.value


def descriptor(width: int, height: int, depth: int = 0, flags: int = 0) -> Any:
    """A three-dimensional array descriptor of four 32-bit floats a texel."""
    return (c_uint64 * 5)(width, height, depth, 4 << 32 | 0x20, flags)


def lookup(name: str, version: int, flags: int = 0) -> tuple[int, int | None, int]:
    """cuGetProcAddress_v2: status of the call, address, status of the symbol."""
    address, found = c_void_p(), c_int(-1)
    status = cuda.cuGetProcAddress_v2(
        name.encode(), byref(address), version, c_uint64(flags), byref(found)
    )
    return status, address.value, found.value


def set_fault(name: str) -> None:
    """Make an entry point of the stub driver fail; an empty name ends that."""
    ctypes.CDLL(None).setenv(b"STUB_FAIL", name.encode(), 1)


def show(*values: object) -> None:
    """Print at once, for a test that reads while the program runs."""
    print(*values, flush=True)  # noqa: T201


__all__ = [
    "MIB", "alloc", "byref", "c_int", "c_size_t", "c_uint", "c_uint64", "c_void_p", "charged",
    "check", "context", "cuda", "descriptor", "driver", "free", "left", "lookup", "memory",
    "set_fault", "show", "truth", "used",
]  # fmt: skip
