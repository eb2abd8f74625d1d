"""Pools, physical memory, graphs and modules through the proxy, for programs that tests start.

``drift`` is what all of it is held against: what the driver took less what the ledger says.
"""

from __future__ import annotations

import struct
from ctypes import (
    Array,
    Structure,
    addressof,
    byref,
    c_char,
    c_int,
    c_size_t,
    c_ubyte,
    c_uint64,
    c_void_p,
    create_string_buffer,
)
from typing import Any

from lab.calls.cuda_calls import check, cuda, truth, used

NOWHERE, DEVICE, HOST, HOST_NUMA, LOCALITY_DOMAIN = 0, 1, 2, 3, 6
PINNED, MANAGED = 1, 2
POSIX_FD = 1
RELEASE_THRESHOLD = 4

PTX = b""".version 7.0
.target sm_75
.address_size 64
.global .align 4 .b8 table[4000];
.visible .entry plain(.param .u64 x) { ret; }
.visible .entry spin_20000us() { ret; }
.visible .entry spin_1000000us() { ret; }
\0"""
ASSERTING_PTX = PTX.replace(b".global", b".extern .func __assertfail(.param .b64 m);\n.global", 1)
MANAGED_PTX = PTX.replace(b".global", b".global .attribute(.managed)")


def drift(gpu: int = 0) -> int:
    """Bytes taken of the current GPU, which is ``gpu``, that the ledger does not know."""
    return truth() - used(gpu)


def made(call: Any, *arguments: Any, kind: Any = c_void_p) -> Any:
    """The handle that a successful call makes."""
    out = kind()
    check(call(byref(out), *arguments))
    return out


def pool_properties(location: int = DEVICE, device: int = 0, kind: int = PINNED) -> Array[c_char]:
    """CUmemPoolProps."""
    return create_string_buffer(struct.pack("<4i", kind, 0, location, device) + bytes(72), 88)


def make_pool(device: int = 0, threshold: int = 0) -> Any:
    """A pool that keeps ``threshold`` bytes at synchronisation."""
    pool = made(cuda.cuMemPoolCreate, pool_properties(device=device))
    if threshold:
        set_threshold(pool, threshold)
    return pool


def default_pool(device: int = 0) -> Any:
    return made(cuda.cuDeviceGetDefaultMemPool, device)


def set_threshold(pool: Any, threshold: int) -> None:
    check(cuda.cuMemPoolSetAttribute(pool, RELEASE_THRESHOLD, byref(c_uint64(threshold))))


def alloc_async(size: int, pool: Any = None, stream: Any = None) -> tuple[int, int]:
    """Status and address of a stream-ordered allocation."""
    address = c_uint64()
    if pool is None:
        status = cuda.cuMemAllocAsync(byref(address), c_size_t(size), stream)
    else:
        status = cuda.cuMemAllocFromPoolAsync(byref(address), c_size_t(size), pool, stream)
    return status, address.value


def free_async(address: int, stream: Any = None) -> int:
    return int(cuda.cuMemFreeAsync(c_uint64(address), stream))


def physical(
    size: int, location: int = DEVICE, handle_types: int = 0, kind: int = PINNED
) -> tuple[int, Any]:
    """Status and handle of physical memory."""
    properties = struct.pack("<4i", kind, handle_types, location, 0) + bytes(16)
    handle = c_uint64()
    status = cuda.cuMemCreate(byref(handle), c_size_t(size), properties, c_uint64(0))
    return status, handle


def reserve(size: int) -> int:
    """A range of addresses."""
    zero = c_uint64(0)
    address = made(cuda.cuMemAddressReserve, c_size_t(size), zero, zero, zero, kind=c_uint64)
    return int(address.value)


def map_at(address: int, size: int, handle: Any, offset: int = 0) -> int:
    where = (c_uint64(address), c_size_t(size), c_size_t(offset))
    return int(cuda.cuMemMap(*where, handle, c_uint64(0)))


def unmap(address: int, size: int) -> int:
    return int(cuda.cuMemUnmap(c_uint64(address), c_size_t(size)))


def export(handle: Any) -> int:
    """A descriptor of the memory behind ``handle``."""
    fd = c_int()
    check(cuda.cuMemExportToShareableHandle(byref(fd), handle, POSIX_FD, c_uint64(0)))
    return fd.value


def import_fd(fd: int) -> Any:
    return made(cuda.cuMemImportFromShareableHandle, c_void_p(fd), POSIX_FD, kind=c_uint64)


class IpcHandle(Structure):
    """CUipcMemHandle."""

    _fields_ = (("bytes", c_ubyte * 64),)


def ipc_handle(address: int) -> str:
    """The handle by which others open linear memory, in hexadecimal digits."""
    handle = IpcHandle()
    check(cuda.cuIpcGetMemHandle(byref(handle), c_uint64(address)))
    return bytes(handle).hex()


def open_ipc(handle: str) -> tuple[int, int]:
    """Status and address of another process's memory."""
    address = c_uint64()
    given = IpcHandle.from_buffer_copy(bytes.fromhex(handle))
    status = cuda.cuIpcOpenMemHandle_v2(byref(address), given, 1)
    return status, address.value


def close_ipc(address: int) -> int:
    return int(cuda.cuIpcCloseMemHandle(c_uint64(address)))


def node_parameters(size: int, kind: int = PINNED, device: int = 0) -> Array[c_char]:
    """CUDA_MEM_ALLOC_NODE_PARAMS."""
    head = struct.pack("<4i", kind, 0, DEVICE, device) + bytes(72)
    return create_string_buffer(head + struct.pack("<4Q", 0, 0, size, 0), 120)


def memory_graph(*sizes: int, freed: bool = True, device: int = 0) -> Any:
    """A graph that allocates ``sizes`` one after the other, freeing each before the next."""
    graph = made(cuda.cuGraphCreate, 0)
    before: Any = None
    for size in sizes:
        parameters = node_parameters(size, device=device)
        count = c_size_t(before is not None)
        node = made(cuda.cuGraphAddMemAllocNode, graph, before, count, parameters)
        (address,) = struct.unpack_from("<Q", parameters, 112)
        before = (c_void_p * 1)(node)
        if freed:
            arguments = (graph, before, c_size_t(1), c_uint64(address))
            before = (c_void_p * 1)(made(cuda.cuGraphAddMemFreeNode, *arguments))
    return graph


def kernel_graph(nodes: int, *, chained: bool = False) -> Any:
    """A graph of kernels, one after the other or beside each other."""
    function = made(cuda.cuModuleGetFunction, made(cuda.cuModuleLoadData, PTX), b"plain")
    graph = made(cuda.cuGraphCreate, 0)
    argument = c_uint64(0)
    arguments = (c_void_p * 1)(addressof(argument))
    # CUDA_KERNEL_NODE_PARAMS_v1: function, grid, block, shared bytes, two lists of parameters
    packed = struct.pack("<Q7I4xQQ", function.value, *[1] * 6, 0, addressof(arguments), 0)
    parameters = create_string_buffer(packed, len(packed))
    before = None
    for _ in range(nodes):
        after = (c_void_p * 1)(before) if chained and before else None
        count = c_size_t(1 if after else 0)
        before = made(cuda.cuGraphAddKernelNode, graph, after, count, parameters).value
    return graph


def instantiate(graph: Any) -> Any:
    return made(cuda.cuGraphInstantiateWithFlags, graph, c_uint64(0))


def load_library(image: bytes) -> Any:
    return made(cuda.cuLibraryLoadData, image, None, None, 0, None, None, 0)


__all__ = [
    "ASSERTING_PTX", "DEVICE", "HOST", "HOST_NUMA", "LOCALITY_DOMAIN", "MANAGED", "MANAGED_PTX",
    "NOWHERE", "PINNED", "POSIX_FD", "PTX",
    "RELEASE_THRESHOLD", "IpcHandle", "alloc_async", "close_ipc", "default_pool", "drift", "export",
    "free_async", "import_fd", "instantiate", "ipc_handle", "kernel_graph", "load_library", "made",
    "make_pool", "map_at", "memory_graph", "node_parameters", "open_ipc", "physical",
    "pool_properties", "reserve", "set_threshold", "unmap",
]  # fmt: skip
