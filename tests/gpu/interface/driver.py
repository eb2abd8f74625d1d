"""libcuda by ctypes, for child processes: what a check does to the driver, without a runtime."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from ctypes import byref, c_char, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

from gpu.check import NotRunError, ordinal

OUT_OF_MEMORY, NOT_SUPPORTED, NOT_FOUND = 2, 801, 500
PINNED, ON_DEVICE, POSIX_FD = 1, 1, 1
DEFERRED = 0x80
FLOAT = 0x20
PTX = """.version 6.0
.target sm_50
.address_size 64
"""
NOTHING = f"{PTX}.visible .entry nothing() {{ ret; }}\n"


class DriverError(Exception):
    """A call failed that must not."""

    def __init__(self, name: str, status: int) -> None:
        super().__init__(f"{name} gave error {status}")
        self.status = status


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle, which is passed by value."""

    _fields_ = (("bytes", ctypes.c_uint8 * 64),)

    def __init__(self, raw: bytes) -> None:
        super().__init__((ctypes.c_uint8 * 64)(*raw))


class Driver:
    """The driver; ``call`` raises, ``status`` returns what the driver says."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")

    def has(self, *names: str) -> bool:
        """Whether the library exports all of ``names``."""
        return all(hasattr(self.library, name) for name in names)

    def needs(self, *names: str) -> None:
        """Raise NotRunError unless the library exports all of ``names``."""
        if not self.has(*names):
            raise NotRunError(f"this driver has no {' or no '.join(names)}")

    def status(self, name: str, *arguments: object) -> int:
        """The CUresult of a call."""
        return int(getattr(self.library, name)(*arguments))

    def call(self, name: str, *arguments: object) -> None:
        """A call that must succeed."""
        status = self.status(name, *arguments)
        if status != 0:
            raise DriverError(name, status)

    def made(self, name: str, *arguments: object, kind: Any = c_void_p) -> Any:
        """What a call writes to its first argument."""
        out = kind()
        self.call(name, byref(out), *arguments)
        return out

    def made_last(self, name: str, *arguments: object) -> c_void_p:
        """What a call writes to its last argument."""
        out = c_void_p()
        self.call(name, *arguments, byref(out))
        return out

    def init(self) -> None:
        """cuInit."""
        self.call("cuInit", 0)

    def start(self, device: int | None = None) -> c_void_p:
        """Initialise, retain the primary context of ``device`` and make it current."""
        self.init()
        context: c_void_p = self.made("cuDevicePrimaryCtxRetain", self.device(device))
        self.call("cuCtxSetCurrent", context)
        return context

    def device(self, number: int | None = None) -> int:
        """The CUdevice of ``number``, or of the GPU under test."""
        found = self.made("cuDeviceGet", ordinal() if number is None else number, kind=c_int)
        return int(found.value)

    def uuid(self) -> str:
        """The UUID of the GPU under test, as NVML writes it."""
        raw = (ctypes.c_uint8 * 16)()
        self.call("cuDeviceGetUuid", raw, self.device())
        h = bytes(raw).hex()
        return f"GPU-{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"

    def attribute(self, number: int) -> int:
        """A device attribute."""
        return int(self.made("cuDeviceGetAttribute", number, self.device(), kind=c_int).value)

    def info(self) -> tuple[int, int]:
        """Free and total bytes, as cuMemGetInfo says."""
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def used(self) -> int:
        """Bytes taken: of the whole GPU, or of the container where capped."""
        free, total = self.info()
        return total - free

    def alloc(self, size: int) -> int:
        """Linear memory."""
        return int(self.made("cuMemAlloc_v2", c_size_t(size), kind=c_uint64).value)

    def try_alloc(self, size: int) -> tuple[int, int]:
        """Status and address."""
        address = c_uint64()
        return self.status("cuMemAlloc_v2", byref(address), c_size_t(size)), address.value

    def free(self, address: int) -> None:
        """Give linear memory back."""
        self.call("cuMemFree_v2", c_uint64(address))

    def sync(self) -> None:
        """Wait for the context."""
        self.call("cuCtxSynchronize")

    def load(self, ptx: str) -> Any:
        """A module of PTX."""
        return self.made("cuModuleLoadData", ptx.encode() + b"\0")

    def function(self, module: Any, name: str) -> Any:
        """A kernel of a module."""
        return self.made("cuModuleGetFunction", module, name.encode())

    def launch(self, function: Any, *arguments: Any) -> None:
        """One thread of ``function``, to its end; ``arguments`` are ctypes values."""
        pointers = (c_void_p * max(1, len(arguments)))(*map(_address, arguments))
        self.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, pointers, None)
        self.sync()


def _address(value: Any) -> int:
    return ctypes.addressof(value)


def array_descriptor(width: int, height: int, flags: int = 0) -> Any:
    """CUDA_ARRAY3D_DESCRIPTOR of four 32-bit floats a texel."""
    packed = struct.pack("<3QiII4x", width, height, 0, FLOAT, 4, flags)
    return ctypes.create_string_buffer(packed, len(packed))


def physical_properties(handle_types: int = 0) -> Any:
    """CUmemAllocationProp of the GPU under test."""
    packed = struct.pack("<4i", PINNED, handle_types, ON_DEVICE, ordinal()) + bytes(16)
    return ctypes.create_string_buffer(packed, 32)


def pool_properties() -> Any:
    """CUmemPoolProps of the GPU under test."""
    packed = struct.pack("<4i", PINNED, 0, ON_DEVICE, ordinal()) + bytes(72)
    return ctypes.create_string_buffer(packed, 88)


def memory_graph(driver: Driver, size: int) -> Any:
    """A graph that allocates ``size`` bytes and frees them."""
    graph = driver.made("cuGraphCreate", 0)
    node_parameters = bytes(pool_properties())[:88] + struct.pack("<4Q", 0, 0, size, 0)
    parameters = (c_char * 120).from_buffer_copy(node_parameters)
    node = driver.made("cuGraphAddMemAllocNode", graph, None, c_size_t(0), parameters)
    (address,) = struct.unpack_from("<Q", parameters, 112)
    before = (c_void_p * 1)(node)
    driver.made("cuGraphAddMemFreeNode", graph, before, c_size_t(1), c_uint64(address))
    return graph


def values(items: Sequence[int]) -> list[float]:
    """Bytes as MiB, for reports."""
    return [round(item / (1 << 20), 2) for item in items]
