"""Facts about pools, graphs, physical memory, green contexts and shared memory."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p, create_string_buffer

from gpu.check import CHUNK, MIB, Finding, check, near
from gpu.interface.driver import (
    POSIX_FD,
    Driver,
    IpcHandle,
    memory_graph,
    physical_properties,
    pool_properties,
)
from gpu.interface.nvml import Nvml

SIZE = 64 * MIB
THRESHOLD, RESERVED = 4, 5
GRAPH_RESERVED = 2
SM_RESOURCE, DEFAULT_STREAM = 1, 1
DEVICE_ORDINAL = 9
GREEN_CONTEXTS, GREEN_BYTES = 4, 6 * MIB  # bytes: shim/cuda/primary.c


def _reserved(driver: Driver, pool: c_void_p) -> int:
    value = c_uint64()
    driver.call("cuMemPoolGetAttribute", pool, RESERVED, byref(value))
    return value.value


def _through_pool(driver: Driver, pool: c_void_p, size: int) -> tuple[int, int]:
    """Bytes reserved while ``size`` bytes are allocated, and after they were freed."""
    address = c_uint64()
    driver.call("cuMemAllocFromPoolAsync", byref(address), c_size_t(size), pool, None)
    driver.call("cuStreamSynchronize", None)
    during = _reserved(driver, pool)
    driver.call("cuMemFreeAsync", address, None)
    driver.call("cuStreamSynchronize", None)
    return during, _reserved(driver, pool)


@check("facts")
def a_pool_keeps_what_its_threshold_says() -> Finding:
    """A pool takes what it reserves, and keeps at synchronisation what its threshold says.

    With threshold 0 all of it goes back, with the highest it stays until the pool is trimmed.
    """
    driver = Driver()
    driver.start()
    pool = driver.made("cuMemPoolCreate", pool_properties())
    start = driver.used()
    small = _through_pool(driver, pool, MIB)[0]
    during, after = _through_pool(driver, pool, SIZE)
    driver.call("cuMemPoolSetAttribute", pool, THRESHOLD, byref(c_uint64((1 << 64) - 1)))
    _, kept = _through_pool(driver, pool, SIZE)
    taken = driver.used() - start
    driver.call("cuMemPoolTrimTo", pool, c_size_t(0))
    trimmed = _reserved(driver, pool)
    measured = {
        "reserved for 1 MiB": small,
        "reserved for 64 MiB": during,
        "freed": after,
        "freed, highest threshold": kept,
        "device use then": taken,
        "trimmed": trimmed,
    }
    holds = during >= SIZE and after == 0 and kept >= SIZE and trimmed == 0 and near(taken, kept)
    return Finding(holds, measured)


@check("facts")
def an_allocation_in_a_capture_takes_nothing() -> Finding:
    """cuMemAllocAsync in a capturing stream adds a node and takes no memory."""
    driver = Driver()
    driver.start()
    stream = driver.made("cuStreamCreate", c_uint(1))
    before = driver.used()
    driver.call("cuStreamBeginCapture_v2", stream, 2)
    address = driver.made("cuMemAllocAsync", c_size_t(SIZE), stream, kind=c_uint64)
    taken = driver.used() - before
    driver.call("cuMemFreeAsync", address, stream)
    graph = driver.made_last("cuStreamEndCapture", stream)
    nodes = c_size_t()
    driver.call("cuGraphGetNodes", graph, None, byref(nodes))
    return Finding(taken == 0 and nodes.value == 2, {"taken": taken, "nodes": nodes.value})


@check("facts")
def graph_memory_comes_at_upload_and_goes_at_trim() -> Finding:
    """Memory of a graph is reserved when it is uploaded or launched, not when it is instantiated.

    It stays when the graph is destroyed, and goes when the device is trimmed.
    """
    driver = Driver()
    driver.needs("cuGraphAddMemAllocNode", "cuGraphInstantiateWithFlags")
    driver.start()
    device, steps = driver.device(), {}

    def step(name: str) -> None:
        value = c_uint64()
        driver.call("cuDeviceGetGraphMemAttribute", device, GRAPH_RESERVED, byref(value))
        steps[name] = value.value

    stream = driver.made("cuStreamCreate", c_uint(1))
    execution = driver.made("cuGraphInstantiateWithFlags", memory_graph(driver, SIZE), c_uint64(0))
    step("instantiated")
    driver.call("cuGraphUpload", execution, stream)
    driver.sync()
    step("uploaded")
    driver.call("cuGraphLaunch", execution, stream)
    driver.sync()
    step("launched")
    driver.call("cuGraphExecDestroy", execution)
    step("destroyed")
    driver.call("cuDeviceGraphMemTrim", device)
    step("trimmed")
    holds = steps["instantiated"] == 0 and steps["uploaded"] >= SIZE and steps["trimmed"] == 0
    kept = steps["launched"] == steps["uploaded"] == steps["destroyed"]
    return Finding(holds and kept, {"reserved": steps})


@check("facts")
def physical_memory_lives_as_long_as_its_exported_descriptor() -> Finding:
    """Physical memory lives until the last of handle, mapping and exported descriptor is gone."""
    driver = Driver()
    driver.start()
    handle, fd = c_uint64(), c_int()
    properties = physical_properties(POSIX_FD)
    start, steps = driver.used(), {}
    driver.call("cuMemCreate", byref(handle), c_size_t(SIZE), properties, c_uint64(0))
    steps["created"] = driver.used() - start
    driver.call("cuMemExportToShareableHandle", byref(fd), handle, POSIX_FD, c_uint64(0))
    zero = c_uint64(0)
    address = driver.made("cuMemAddressReserve", c_size_t(SIZE), zero, zero, zero, kind=c_uint64)
    driver.call("cuMemMap", address, c_size_t(SIZE), c_size_t(0), handle, zero)
    driver.call("cuMemRelease", handle)
    steps["released, mapped, exported"] = driver.used() - start
    driver.call("cuMemUnmap", address, c_size_t(SIZE))
    steps["exported"] = driver.used() - start
    os.close(fd.value)
    steps["closed"] = driver.used() - start
    *held, gone = steps.values()
    return Finding(all(size == SIZE for size in held) and gone == 0, {"taken": steps})


def green_context(driver: Driver) -> c_void_p:
    """One that has all multiprocessors."""
    device, resource = driver.device(), create_string_buffer(4096)
    driver.call("cuDeviceGetDevResource", device, resource, SM_RESOURCE)
    description = driver.made("cuDevResourceGenerateDesc", resource, c_uint(1))
    made: c_void_p = driver.made("cuGreenCtxCreate", description, device, c_uint(DEFAULT_STREAM))
    return made


@check("facts", simulated=False)
def a_green_context_keeps_the_primary_one_and_takes_little() -> Finding:
    """A green context keeps the primary context active, and takes at most 6 MiB.

    Each of several does. What is taken after they are destroyed is shown.
    """
    driver = Driver()
    driver.needs("cuGreenCtxCreate", "cuDeviceGetDevResource", "cuDevResourceGenerateDesc")
    driver.start()
    before, taken, contexts = driver.used(), [], []
    for _ in range(GREEN_CONTEXTS):
        contexts.append(green_context(driver))
        taken.append(driver.used() - before)
    for green in contexts[1:]:
        driver.call("cuGreenCtxDestroy", green)
    left, device = driver.used() - before, driver.device()
    driver.call("cuDevicePrimaryCtxRelease_v2", device)
    flags, kept, gone = c_uint(), c_int(-1), c_int(-1)
    driver.call("cuDevicePrimaryCtxGetState", device, byref(flags), byref(kept))
    driver.call("cuGreenCtxDestroy", contexts[0])
    driver.call("cuDevicePrimaryCtxGetState", device, byref(flags), byref(gone))
    measured = {
        "taken": taken,
        "left by one of them": left,
        "active with it": kept.value,
        "active after it": gone.value,
    }
    little = all(size <= GREEN_BYTES * number for number, size in enumerate(taken, 1))
    return Finding(little and (kept.value, gone.value) == (1, 0), measured)


EXPORTER = """
import socket
import sys
from ctypes import byref, c_int, c_size_t, c_uint64
from gpu.facts.kinds import SIZE
from gpu.interface.driver import POSIX_FD, Driver, physical_properties
driver = Driver()
driver.start()
handle, fd = c_uint64(), c_int()
driver.call("cuMemCreate", byref(handle), c_size_t(SIZE), physical_properties(POSIX_FD), c_uint64())
driver.call("cuMemExportToShareableHandle", byref(fd), handle, POSIX_FD, c_uint64(0))
socket.send_fds(socket.socket(fileno=int(sys.argv[1])), [b"x"], [fd.value])
sys.stdin.readline()
"""


class Steps:
    """What is used of the GPU, and by this process, since the start: noted after each step."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.nvml = driver, Nvml()
        self.gpu = self.nvml.gpu_of(driver.uuid())
        self.start = self._used()
        self.noted: dict[str, dict[str, int]] = {}

    def _used(self) -> tuple[int, int]:
        return self.driver.used(), self.nvml.processes(self.gpu).get(os.getpid()) or 0

    def note(self, name: str) -> int:
        """Bytes of the GPU."""
        device, process = (now - then for now, then in zip(self._used(), self.start, strict=True))
        self.noted[name] = {"device": device, "process": process}
        return device


@check("facts")
def imported_memory_outlives_its_exporter() -> Finding:
    """Imported memory outlives its exporter. What NVML counts for the importer is shown."""
    driver = Driver()
    driver.start()
    driver.alloc(CHUNK)
    steps = Steps(driver)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        words = [sys.executable, "-c", EXPORTER, str(theirs.fileno())]
        exporter = subprocess.Popen(words, stdin=subprocess.PIPE, pass_fds=[theirs.fileno()])
        _, (descriptor,), _, _ = socket.recv_fds(ours, 1, 1)
    handle = driver.made(
        "cuMemImportFromShareableHandle", c_void_p(descriptor), POSIX_FD, kind=c_uint64
    )
    steps.note("imported")
    exporter.communicate(b"\n")
    os.close(descriptor)
    held = steps.note("exporter ended")
    driver.call("cuMemRelease", handle)
    gone = steps.note("released")
    return Finding(near(held, SIZE) and near(gone, 0), {"steps": steps.noted})


IMPORTER = """
import sys
from ctypes import c_uint, c_uint64
from gpu.interface.driver import Driver, IpcHandle
driver = Driver()
driver.start()
before = driver.used()
handle = IpcHandle(bytes.fromhex(sys.argv[1]))
driver.made("cuIpcOpenMemHandle_v2", handle, c_uint(1), kind=c_uint64)
print(driver.used() - before)
"""


@check("facts")
def opened_ipc_memory_is_not_taken_twice() -> Finding:
    """A process that opens another's memory by IPC handle takes no memory of its own for it."""
    driver = Driver()
    driver.start()
    handle = create_string_buffer(64)
    driver.call("cuIpcGetMemHandle", handle, c_uint64(driver.alloc(SIZE)))
    command = [sys.executable, "-c", IMPORTER, handle.raw.hex()]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    taken = int(done.stdout)
    return Finding(taken <= CHUNK, {"taken by the importer": taken, "exported": SIZE})


MAKER = """
import sys
from ctypes import c_uint64, create_string_buffer
from gpu.facts.kinds import SIZE
from gpu.interface.driver import Driver
driver = Driver()
driver.start()
address, handle = driver.alloc(SIZE), create_string_buffer(64)
driver.call("cuIpcGetMemHandle", handle, c_uint64(address))
print(handle.raw.hex(), flush=True)
sys.stdin.readline()
driver.call("cuMemFree_v2", c_uint64(address))
print("freed", flush=True)
sys.stdin.readline()
"""


@check("facts")
def opened_ipc_memory_outlives_its_maker() -> Finding:
    """Memory that was opened by its IPC handle stays when its maker frees it or ends."""
    driver = Driver()
    driver.start()
    driver.alloc(CHUNK)
    steps = Steps(driver)
    words = [sys.executable, "-c", MAKER]
    maker = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert maker.stdin is not None
    assert maker.stdout is not None
    handle = IpcHandle(bytes.fromhex(maker.stdout.readline()))
    address = driver.made("cuIpcOpenMemHandle_v2", handle, c_uint(1), kind=c_uint64)
    size, ordinal = c_size_t(), c_int(-1)
    driver.call("cuMemGetAddressRange_v2", None, byref(size), address)
    driver.call("cuPointerGetAttribute", byref(ordinal), DEVICE_ORDINAL, address)
    opened = steps.note("opened")
    maker.stdin.write("\n")
    maker.stdin.flush()
    maker.stdout.readline()
    freed = steps.note("its maker freed it")
    maker.communicate("\n")
    held = steps.note("its maker ended")
    driver.call("cuIpcCloseMemHandle", address)
    gone = steps.note("closed")
    measured = {"size": size.value, "device": ordinal.value, "steps": steps.noted}
    known = near(size.value, SIZE) and ordinal.value == driver.device()
    return Finding(known and near(freed, opened) and near(held, SIZE) and near(gone, 0), measured)
