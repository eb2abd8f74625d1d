"""Calls that leave out pointers: as the driver answers them, with the container's figures."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from lab.driver import entry_points
from lab.driver.cuda_base import (
    PROGRAMS,
    ROOT,
    STUB_CAP,
    STUB_CONTEXT,
    compile_c,
    lay_out,
    stub_gpus,
)
from lab.driver.cuda_proxied import CAP as SHARE
from lab.driver.cuda_proxied import MIB

if TYPE_CHECKING:
    from pathlib import Path

    from lab.driver.cuda_proxied import Proxied

pytestmark = pytest.mark.integration

CAP = 2048 * MIB  # which the first versions of the calls can show

# Handles are NULL until there are any: the driver is not initialised then.
START = """
import struct, types
from ctypes import create_string_buffer
from lab.calls.cuda_kind_calls import *
from lab.calls.pointer_calls import figure, leave_out, pointer

def words(*values):
    return (c_uint * len(values))(*values)

h = types.SimpleNamespace(**dict.fromkeys(
    ("context", "module", "library", "kernel", "pool", "shared", "imported", "physical", "address",
     "fd", "linear", "graph")))

def make_handles():
    h.context = context()
    h.module = made(cuda.cuModuleLoadData, PTX)
    h.library = load_library(PTX)
    h.kernel = made(cuda.cuLibraryGetKernel, h.library, b"plain")
    made(cuda.cuLibraryGetModule, h.library)
    h.pool = make_pool()
    shares = struct.pack("<4i", PINNED, POSIX_FD, DEVICE, 0) + bytes(72)
    h.shared = made(cuda.cuMemPoolCreate, shares)
    fd = made(cuda.cuMemPoolExportToShareableHandle, h.shared, POSIX_FD, c_uint64(0),
              kind=c_int).value
    h.imported = made(
        cuda.cuMemPoolImportFromShareableHandle, c_void_p(fd), POSIX_FD, c_uint64(0))
    h.physical = physical(2 * MIB, handle_types=POSIX_FD)[1]
    h.address = reserve(2 * MIB)
    check(map_at(h.address, 2 * MIB, h.physical))
    h.fd = export(h.physical)
    h.linear = alloc(2 * MIB)[1]
    h.graph = made(cuda.cuGraphCreate, 0)

def call(name, *arguments):
    leave_out(name, *arguments)
    if h.context:
        check(cuda.cuCtxSetCurrent(h.context))
"""

CALLS = """
call("cuGetProcAddress", pointer(create_string_buffer(b"cuMemAlloc")), pointer(c_void_p()), 12040,
     c_uint64(0))
for name in "cuGetProcAddress_v2", "cuGetProcAddress_v2_ptsz":
    call(name, pointer(create_string_buffer(b"cuMemAlloc")), pointer(c_void_p()), 12040,
         c_uint64(0), pointer(c_int()))

call("cuMemAlloc", pointer(c_uint()), 3 * MIB)
call("cuMemAlloc_v2", pointer(c_uint64()), c_size_t(3 * MIB))
call("cuMemAllocPitch", pointer(c_uint()), pointer(c_uint()), 1000, 5000, 4)
call("cuMemAllocPitch_v2", pointer(c_uint64()), pointer(c_size_t()), c_size_t(1000),
     c_size_t(5000), 4)
call("cuArrayCreate", pointer(c_void_p()), pointer(words(512, 512, 0x20, 4)))
call("cuArrayCreate_v2", pointer(c_void_p()), pointer((c_uint64 * 3)(512, 512, 4 << 32 | 0x20)))
call("cuArray3DCreate", pointer(c_void_p()), pointer(words(512, 512, 0, 0x20, 4, 0)))
call("cuArray3DCreate_v2", pointer(c_void_p()), pointer(descriptor(512, 512)))
call("cuMipmappedArrayCreate", pointer(c_void_p()), pointer(descriptor(512, 512)), 4)

for name in "cuCtxCreate", "cuCtxCreate_v2", "cuGLCtxCreate", "cuGLCtxCreate_v2":
    call(name, pointer(c_void_p()), 0, 0)
call("cuCtxCreate_v3", pointer(c_void_p()), None, 0, 0, 0)
call("cuCtxCreate_v4", pointer(c_void_p()), None, 0, 0)
for name in "cuVDPAUCtxCreate", "cuVDPAUCtxCreate_v2":
    call(name, pointer(c_void_p()), 0, 0, 0, None)
call("cuCtxAttach", pointer(c_void_p()), 0)
for name in "cuCtxPopCurrent", "cuCtxPopCurrent_v2":
    call(name, pointer(c_void_p()))
call("cuDevicePrimaryCtxRetain", pointer(c_void_p()), 0)
call("cuGreenCtxCreate", pointer(c_void_p()), None, 0, 1)
call("cuCtxFromGreenCtx", pointer(c_void_p()), None)

call("cuMemGetInfo", figure(c_uint), figure(c_uint))
call("cuMemGetInfo_v2", figure(c_size_t), figure(c_size_t))
call("cuDeviceTotalMem", figure(c_uint), 0)
call("cuDeviceTotalMem_v2", figure(c_size_t), 0)
for attribute in 83, 88, 89, 100, 101:
    call("cuDeviceGetAttribute", figure(c_int), attribute, 0)

for name in "cuMemAllocAsync", "cuMemAllocAsync_ptsz":
    call(name, pointer(c_uint64()), c_size_t(3 * MIB), None)
for name in "cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync_ptsz":
    call(name, pointer(c_uint64()), c_size_t(3 * MIB), h.pool, None)
call("cuMemPoolCreate", pointer(c_void_p()), pointer(pool_properties()))
for attribute in range(1, 14):
    call("cuMemPoolGetAttribute", h.pool, attribute, figure(c_uint64))
call("cuMemPoolGetAttribute", h.imported, 13, figure(c_uint64))
call("cuMemPoolSetAttribute", h.pool, RELEASE_THRESHOLD, pointer(c_uint64(0)))
call("cuMemPoolExportToShareableHandle", pointer(c_int()), h.shared, POSIX_FD, c_uint64(0))
call("cuMemPoolImportPointer", pointer(c_uint64()), h.imported, pointer(create_string_buffer(64)))
call("cuMemPoolImportFromShareableHandle", pointer(c_void_p()), c_void_p(h.fd), POSIX_FD,
     c_uint64(0))
for name in "cuMemGetDefaultMemPool", "cuMemGetMemPool":
    call(name, pointer(c_void_p()), pointer(words(DEVICE, 0)), PINNED)
call("cuMemSetMemPool", pointer(words(DEVICE, 0)), PINNED, h.pool)

call("cuMemCreate", pointer(c_uint64()), c_size_t(4 * MIB),
     pointer(create_string_buffer(struct.pack("<4i", PINNED, 0, DEVICE, 0) + bytes(16))),
     c_uint64(0))
call("cuMemRetainAllocationHandle", pointer(c_uint64()), c_void_p(h.address))
for name in "cuMemMapArrayAsync", "cuMemMapArrayAsync_ptsz":
    call(name, pointer(create_string_buffer(96)), 1, None)
call("cuMemExportToShareableHandle", pointer(c_int()), h.physical, POSIX_FD, c_uint64(0))
call("cuMemImportFromShareableHandle", pointer(c_uint64()), c_void_p(h.fd), POSIX_FD)
call("cuIpcGetMemHandle", pointer(IpcHandle()), c_uint64(h.linear or 0))
for name in "cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2":
    call(name, pointer(c_uint64()), IpcHandle(), 1)

call("cuStreamCreate", pointer(c_void_p()), 0)
call("cuStreamCreateWithPriority", pointer(c_void_p()), 0, 0)
call("cuGreenCtxStreamCreate", pointer(c_void_p()), None, 1, 0)

call("cuLaunchCooperativeKernelMultiDevice", pointer(create_string_buffer(56)), 1, 0)
for name in ("cuGraphAddHostNode", "cuGraphAddBatchMemOpNode",
             "cuGraphAddExternalSemaphoresWaitNode"):
    call(name, pointer(c_void_p()), h.graph, None, c_size_t(0), pointer(create_string_buffer(64)))
call("cuGraphAddNode", pointer(c_void_p()), h.graph, None, c_size_t(0),
     pointer(create_string_buffer(256)))
for name in "cuGraphAddNode_v2", "cuGraphAddNode_v3":
    call(name, pointer(c_void_p()), h.graph, None, None, c_size_t(0),
         pointer(create_string_buffer(256)))
for name in "cuGraphInstantiate", "cuGraphInstantiate_v2":
    call(name, pointer(c_void_p()), h.graph, pointer(c_void_p()),
         pointer(create_string_buffer(64)), c_size_t(64))
call("cuGraphInstantiateWithFlags", pointer(c_void_p()), h.graph, c_uint64(0))
for name in "cuGraphInstantiateWithParams", "cuGraphInstantiateWithParams_ptsz":
    call(name, pointer(c_void_p()), h.graph, pointer(create_string_buffer(32)))

call("cuModuleLoad", pointer(c_void_p()), pointer(create_string_buffer(b"code.ptx")))
for name in "cuModuleLoadData", "cuModuleLoadFatBinary":
    call(name, pointer(c_void_p()), pointer(create_string_buffer(PTX)))
call("cuModuleLoadDataEx", pointer(c_void_p()), pointer(create_string_buffer(PTX)), 0, None, None)
call("cuModuleGetFunction", pointer(c_void_p()), h.module, pointer(create_string_buffer(b"plain")))
call("cuModuleEnumerateFunctions", pointer((c_void_p * 4)()), 4, h.module)
call("cuModuleGetGlobal", pointer(c_uint()), pointer(c_uint()), h.module,
     pointer(create_string_buffer(b"table")))
call("cuModuleGetGlobal_v2", pointer(c_uint64()), pointer(c_size_t()), h.module,
     pointer(create_string_buffer(b"table")))
call("cuLibraryLoadData", pointer(c_void_p()), pointer(create_string_buffer(PTX)), None, None, 0,
     None, None, 0)
call("cuLibraryLoadFromFile", pointer(c_void_p()), pointer(create_string_buffer(b"code.ptx")),
     None, None, 0, None, None, 0)
call("cuLibraryGetModule", pointer(c_void_p()), h.library)
call("cuLibraryGetGlobal", pointer(c_uint64()), pointer(c_size_t()), h.library,
     pointer(create_string_buffer(b"table")))
call("cuLibraryEnumerateKernels", pointer((c_void_p * 4)()), 4, h.library)
call("cuLibraryGetKernel", pointer(c_void_p()), h.library, pointer(create_string_buffer(b"plain")))
call("cuKernelGetFunction", pointer(c_void_p()), h.kernel)
"""

PROGRAM = f"""
{START}
with open("code.ptx", "wb") as file:
    file.write(PTX)

def make_calls():
{CALLS.replace(chr(10), chr(10) + "    ")}

make_calls()
make_handles()
make_calls()
check(alloc(left() - left() % (2 * MIB))[0])
make_calls()
"""

# Pointers that the hooks only pass on: to functions, edges, and what the GPU is to wait for.
PASSED_ON = {
    f"{name}{suffix}"
    for name in (
        "cuLaunchHostFunc",
        "cuLaunchHostFunc_v2",
        "cuStreamAddCallback",
        "cuStreamBatchMemOp",
        "cuStreamBatchMemOp_v2",
        "cuStreamBeginCaptureToGraph",
        "cuStreamBeginRecaptureToGraph",
        "cuWaitExternalSemaphoresAsync",
    )
    for suffix in ("", "_ptsz")
}


def _answers(proxied: Proxied, **env: str) -> tuple[list[str], list[list[int]]]:
    """Of each call: name, what was given, status; and what it charged, with its figures."""
    lines = [line.split() for line in proxied.check(PROGRAM, **env).out]
    return [" ".join(line[:3]) for line in lines], [[int(n) for n in line[3:]] for line in lines]


def test_mem_4_a_call_without_its_pointers_is_answered_as_the_driver_does(
    proxied: Proxied, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """MEM-2, MEM-4: with any pointers left out, it shows no more than the cap, charges nothing, and
    gives the driver's status; before the driver starts, under the cap, and at it.
    """
    monkeypatch.chdir(tmp_path)
    proxied.base.set_cap(CAP)
    plain, all_of_it = _answers(proxied, CGPU_PROXY=str(proxied.base.path / "real/libcuda.so.1"))
    answers, container = _answers(proxied)
    assert answers == plain
    assert {charged for charged, *_ in container} == {0}
    assert max(max(figures) for figures in container) == CAP
    assert max(max(figures) for figures in all_of_it) > CAP


def test_no_hook_uses_a_pointer_that_was_left_out_even_if_the_driver_accepts_the_call(
    tmp_path: Path,
) -> None:
    """The program goes on, and nothing is charged but its context."""
    flags = ("-shared", "-fPIC", f"-I{ROOT / 'shim' / 'cuda'}")
    driver = compile_c(PROGRAMS / "drivers" / "lenient_driver.c", tmp_path / "libcuda.so.1", *flags)
    base = lay_out(tmp_path / "base", driver, stub_gpus(STUB_CAP, STUB_CONTEXT))
    outcome = base.check(f"{START}check(cuda.cuInit(0))\ncuda.cuMemGetInfo_v2(None, None)\n{CALLS}")
    assert len(outcome.out) > len(re.findall(r"^ *call", CALLS, re.MULTILINE))
    assert {line.split()[3] for line in outcome.out} == {"0"}


def test_mem_4_free_and_total_can_be_asked_for_one_by_one(proxied: Proxied) -> None:
    """MEM-4: by both versions of the call."""
    proxied.base.set_cap(CAP)
    outcome = proxied.check(
        """
        context()
        for call, kind in (cuda.cuMemGetInfo, c_uint), (cuda.cuMemGetInfo_v2, c_size_t):
            free, total = kind(), kind()
            show(call(byref(free), None), call(None, byref(total)), call(None, None),
                 free.value == left(), total.value)
        """
    )
    assert outcome.out == [f"0 0 0 True {CAP}"] * 2


def test_mem_4_no_pool_shows_a_maximum_above_the_cap(proxied: Proxied) -> None:
    """MEM-4: 0 stands for no maximum; that of an imported pool is the GPU's memory."""
    outcome = proxied.check(
        START
        + """
make_handles()
small = create_string_buffer(pool_properties().raw)
struct.pack_into("<Q", small, 24, 64 * MIB)
large = create_string_buffer(pool_properties(device=1).raw)
struct.pack_into("<Q", large, 24, 8192 * MIB)
for pool in (default_pool(), made(cuda.cuMemPoolCreate, small), made(cuda.cuMemPoolCreate, large),
             h.imported):
    maximum = c_uint64()
    check(cuda.cuMemPoolGetAttribute(pool, 13, byref(maximum)))
    show(maximum.value)
"""
    )
    assert outcome.out == ["0", str(64 * MIB), str(SHARE), str(SHARE)]


def test_physical_memory_of_a_device_that_does_not_exist_is_the_drivers_to_refuse(
    proxied: Proxied,
) -> None:
    outcome = proxied.check(
        START
        + """
context()
for device in 2, 99, -1:
    properties = struct.pack("<4i", PINNED, 0, DEVICE, device) + bytes(16)
    show(cuda.cuMemCreate(byref(c_uint64()), c_size_t(2 * MIB), properties, c_uint64(0)))
"""
    )
    assert (outcome.out, outcome.log) == (["101"] * 3, "")


def test_every_hook_with_pointers_is_called_without_them() -> None:
    """A new hook's calls are added above."""
    called = set(re.findall(r'"(cu\w+)"', CALLS))
    assert entry_points.with_pointers() - PASSED_ON == called
