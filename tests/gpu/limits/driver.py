"""Limits under cgpu-run by the driver interface alone, in a capped child."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint64
from pathlib import Path
from typing import Any

from gpu.check import CAPPED, CHUNK, MIB, Finding, NotRunError, cap, check, driver_bytes, near
from gpu.facts.code import calling
from gpu.facts.graphs import kernel_graph
from gpu.facts.kinds import green_context
from gpu.facts.memory import SPILL, TABLE
from gpu.interface.driver import (
    NOT_SUPPORTED,
    NOTHING,
    OUT_OF_MEMORY,
    Driver,
    DriverError,
    array_descriptor,
    memory_graph,
    physical_properties,
    pool_properties,
)
from gpu.interface.nvml import Nvml

STACK_SIZE = 0  # CUlimit
MANAGED_ATTRIBUTES = (83, 88, 89, 100, 101)
NEWER_THAN_DRIVER, REFUSED_DRIVER = 35, 103


@check("limits", CAPPED)
def every_way_to_ask_shows_the_same_total() -> Finding:
    """cuMemGetInfo, cuDeviceTotalMem and both versions of NVML's memory info agree.

    The total is the share of what NVML says outside. What is used is the same for all, but that
    cuMemGetInfo shows whole blocks as free, so that all of it can be taken.
    """
    driver = Driver()
    driver.start()
    nvml = Nvml()
    gpu = nvml.gpu_of(driver.uuid())
    free, total = driver.info()
    device = driver.made("cuDeviceTotalMem_v2", driver.device(), kind=c_size_t).value
    v1, v2 = nvml.memory(gpu), nvml.memory_v2(gpu)
    used = {total - free, v1.used, v2.used}
    totals = [total, device, v1.total, v2.total]
    measured = {"cap": cap(), "totals": totals, "used": sorted(used)}
    agree = v1.used == v2.used <= total - free < v1.used + CHUNK
    return Finding(set(totals) == {cap()} and agree, measured)


def _fill(driver: Driver) -> tuple[list[int], int]:
    """Allocate until less than 2 MiB is left, and what the last refusal was."""
    held, size, status = [], 1024 * MIB, 0
    while size >= CHUNK:
        status, address = driver.try_alloc(size)
        if status == 0:
            held.append(address)
        elif status == OUT_OF_MEMORY:
            size //= 2
        else:
            break
    return held, status


@check("limits", CAPPED)
def the_cap_is_reached_and_not_crossed() -> Finding:
    """A program gets its cap up to the last 2 MiB and not a byte more, the driver agreeing.

    Then it is refused with error 2, nothing is left of that, and freed memory can be had again.
    """
    driver = Driver()
    driver.start()
    held, status = _fill(driver)
    free, total = driver.info()
    refused, _ = driver.try_alloc(free + 1)
    left = driver.info()[0]
    real = driver_bytes()
    driver.free(held.pop())
    back = driver.info()[0]
    again, _ = driver.try_alloc(back // CHUNK * CHUNK)
    measured = {
        "cap": total,
        "free at the edge": free,
        "statuses": [status, refused, again],
        "NVML says of the process": real,
    }
    exact = free < CHUNK and left == free and (status, refused, again) == (2, 2, 0)
    return Finding(exact and total == cap() and real <= total + CHUNK, measured)


@check("limits", CAPPED)
def managed_memory_is_refused() -> Finding:
    """cuMemAllocManaged gives error 801, and every device attribute of managed memory reads 0."""
    driver = Driver()
    driver.start()
    status = driver.status("cuMemAllocManaged", byref(c_uint64()), c_size_t(MIB), 1)
    attributes = {n: driver.attribute(n) for n in MANAGED_ATTRIBUTES}
    measured = {"status": status, "attributes": attributes}
    return Finding(status == NOT_SUPPORTED and not any(attributes.values()), measured)


def _linear(driver: Driver) -> None:
    driver.alloc(100 * MIB + 1)


def _small(driver: Driver) -> None:
    for _ in range(5000):
        driver.alloc(1000)


def _pitched(driver: Driver) -> None:
    address, pitch = c_uint64(), c_size_t()
    size = (c_size_t(10001), c_size_t(3001))
    driver.call("cuMemAllocPitch_v2", byref(address), byref(pitch), *size, 16)


def _array(driver: Driver) -> None:
    driver.made("cuArray3DCreate_v2", array_descriptor(4001, 1003))


def _pool(driver: Driver) -> None:
    pool = driver.made("cuMemPoolCreate", pool_properties())
    driver.made("cuMemAllocFromPoolAsync", c_size_t(50 * MIB), pool, None, kind=c_uint64)
    driver.sync()


def _physical(driver: Driver) -> None:
    size, flags = c_size_t(32 * CHUNK), c_uint64(0)
    driver.made("cuMemCreate", size, physical_properties(), flags, kind=c_uint64)


def _graph(driver: Driver) -> None:
    graph = memory_graph(driver, 40 * MIB)
    execution = driver.made("cuGraphInstantiateWithFlags", graph, c_uint64(0))
    driver.call("cuGraphLaunch", execution, None)
    driver.sync()


def _module(driver: Driver) -> None:
    driver.launch(driver.function(driver.load(TABLE), "touch"))


def _printing_module(driver: Driver) -> None:
    driver.launch(driver.function(driver.load(calling("vprintf")), "calls"), ctypes.c_uint(0))


def _executable_graphs(driver: Driver) -> None:
    function = driver.function(driver.load(NOTHING), "nothing")
    graph = kernel_graph(driver, function, 100, chained=False)
    for _ in range(8):
        driver.made("cuGraphInstantiateWithFlags", graph, c_uint64(0))


def _green_context(driver: Driver) -> None:
    try:
        green_context(driver)
    except (AttributeError, DriverError) as error:  # older drivers, and the simulated one
        if getattr(error, "status", NOT_SUPPORTED) != NOT_SUPPORTED:
            raise


def _stack_limit(driver: Driver) -> None:
    driver.call("cuCtxSetLimit", STACK_SIZE, c_size_t(4096))
    driver.launch(driver.function(driver.load(NOTHING), "nothing"))


def _local_memory(driver: Driver) -> None:
    function, out = driver.function(driver.load(SPILL), "spill"), driver.alloc(64)
    driver.launch(function, c_uint64(out), ctypes.c_uint(3), ctypes.c_uint(3))


KINDS: dict[str, Callable[[Driver], None]] = {
    "linear": _linear,
    "small linear": _small,
    "pitched": _pitched,
    "array": _array,
    "pool": _pool,
    "physical": _physical,
    "graph": _graph,
    "module": _module,
    "module that prints": _printing_module,
    "executable graphs": _executable_graphs,
    "green context": _green_context,
    "stack limit": _stack_limit,
    "local memory": _local_memory,
}


@check("limits", CAPPED)
def each_kind_of_memory_is_charged_what_the_driver_takes() -> Finding:
    """For each kind of memory the ledger grows as NVML's figure for the process does.

    Within 1 % or 2 MiB, for a context and for each kind by itself.
    """
    driver = Driver()
    driver.start()
    ledger, real = driver.used(), driver_bytes()
    kinds: dict[str, Any] = {"context": {"ledger": ledger, "driver": real}}
    for name, make in KINDS.items():
        make(driver)
        now, truth = driver.used(), driver_bytes()
        kinds[name] = {"ledger": now - ledger, "driver": truth - real}
        ledger, real = now, truth
    wrong = [k for k, v in kinds.items() if not near(v["ledger"], v["driver"], 0.01)]
    return Finding(not wrong, {"bytes": kinds, "differ": wrong, "in all": [ledger, real]})


def _runtimes() -> list[Path]:
    """libcudart in the usual places, the packages of this Python included."""
    import site  # noqa: PLC0415 - only here
    import sysconfig  # noqa: PLC0415

    folders = {*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("purelib")}
    found = [p for folder in folders for p in Path(folder).glob("nvidia/**/libcudart.so.*")]
    found += Path("/usr/local").glob("cuda*/lib64/libcudart.so.1?")
    found += Path("/usr/lib").glob("*/libcudart.so.1?")
    return found


@check("limits", CAPPED, simulated=False)
def the_cuda_runtime_accepts_the_driver() -> Finding:
    """libcudart, which checks what the driver says of itself, starts: no error 103."""
    for path in _runtimes():
        runtime = ctypes.CDLL(str(path))
        count, address = c_int(), ctypes.c_void_p()
        statuses = [
            runtime.cudaGetDeviceCount(byref(count)),
            runtime.cudaFree(None),
            runtime.cudaMalloc(byref(address), c_size_t(MIB)),
        ]
        if statuses[0] == NEWER_THAN_DRIVER:
            continue
        measured = {"library": str(path), "statuses": statuses, "devices": count.value}
        return Finding(statuses == [0, 0, 0] and REFUSED_DRIVER not in statuses, measured)
    raise NotRunError("no libcudart for this driver found on this machine")
