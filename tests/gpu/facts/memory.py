"""Facts about contexts, linear memory, arrays and code: what the driver takes, and when."""

from __future__ import annotations

import os
import time
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, create_string_buffer
from pathlib import Path
from typing import Any

from gpu.check import CHUNK, MIB, Finding, NotRunError, check, near
from gpu.interface.driver import (
    DEFERRED,
    NOTHING,
    PTX,
    Driver,
    array_descriptor,
    physical_properties,
    values,
)
from gpu.interface.nvml import Nvml

LOCAL_BYTES = 8192
THREADS_PER_SM, SMS, LOCAL_ATTRIBUTE = 39, 16, 3
SPILL = (
    PTX
    + f""".visible .entry spill(.param .u64 out, .param .u32 write, .param .u32 read)
{{
    .local .align 4 .b8 depot[{LOCAL_BYTES}];
    .reg .b32 %i<4>;
    .reg .b64 %d<8>;
    ld.param.u64 %d1, [out];
    ld.param.u32 %i1, [write];
    ld.param.u32 %i2, [read];
    cvta.to.global.u64 %d2, %d1;
    mov.u64 %d3, depot;
    mul.wide.u32 %d4, %i1, 4;
    add.s64 %d5, %d3, %d4;
    st.local.u32 [%d5], %i1;
    mul.wide.u32 %d6, %i2, 4;
    add.s64 %d7, %d3, %d6;
    ld.local.u32 %i3, [%d7];
    st.global.u32 [%d2], %i3;
    ret;
}}
"""
)
TABLE_BYTES = 8 * MIB
TABLE = (
    PTX
    + f""".visible .global .align 4 .b8 table[{TABLE_BYTES}];
.visible .entry touch()
{{
    .reg .b32 %i<2>;
    .reg .b64 %d<2>;
    mov.u64 %d1, table;
    ld.global.u32 %i1, [%d1];
    st.global.u32 [%d1+4], %i1;
    ret;
}}
"""
)


@check("facts")
def granularity_is_2_mib() -> Finding:
    """cuMemGetAllocationGranularity of device memory is 2 MiB, minimum and recommended."""
    driver = Driver()
    driver.start()
    sizes = [
        driver.made("cuMemGetAllocationGranularity", physical_properties(), option, kind=c_size_t)
        for option in (0, 1)
    ]
    return Finding(all(s.value == CHUNK for s in sizes), {"bytes": [s.value for s in sizes]})


def _context_cost(driver: Driver, nvml: Nvml, number: int) -> dict[str, Any]:
    device = driver.device(number)
    raw = create_string_buffer(16)
    driver.call("cuDeviceGetUuid", raw, device)
    h = raw.raw.hex()
    gpu = nvml.gpu_of(f"GPU-{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}")
    before = nvml.memory(gpu).used
    driver.start(number)
    driver.sync()
    time.sleep(0.2)
    difference = nvml.memory(gpu).used - before
    own = nvml.processes(gpu).get(os.getpid())
    driver.call("cuDevicePrimaryCtxRelease_v2", device)
    return {"gpu": nvml.name(gpu), "device difference": difference, "of this process": own}


@check("facts")
def a_context_costs_about_100_to_620_mib() -> Finding:
    """A context costs 107-616 MiB, by GPU model (the simulated ones 105 MiB).

    Measured on each GPU by the GPU's use and, where NVML lists this process, by its figure.
    """
    driver = Driver()
    driver.init()
    nvml = Nvml()
    count = int(driver.made("cuDeviceGetCount", kind=c_int).value)
    costs = [_context_cost(driver, nvml, number) for number in range(count)]
    sizes = [cost["of this process"] or cost["device difference"] for cost in costs]
    holds = bool(sizes) and all(100 * MIB <= size <= 620 * MIB for size in sizes)
    return Finding(holds, {"per gpu": costs, "mib": values(sizes)})


@check("facts")
def a_primary_context_is_inactive_after_reset() -> Finding:
    """cuDevicePrimaryCtxReset frees all memory of a primary context, which then reads inactive."""
    driver = Driver()
    driver.start()
    before = driver.used()
    driver.alloc(64 * MIB)
    driver.call("cuDevicePrimaryCtxReset_v2", driver.device())
    flags, active = c_uint(), c_int(-1)
    driver.call("cuDevicePrimaryCtxGetState", driver.device(), byref(flags), byref(active))
    driver.start()
    after = driver.used()
    measured = {"active": active.value, "kept bytes": after - before}
    return Finding(active.value == 0 and after - before <= CHUNK, measured)


@check("facts")
def a_deferred_array_takes_no_memory_and_tells_the_size() -> Finding:
    """An array with deferred mapping takes no memory and tells what an ordinary one takes.

    It tells by cuArrayGetMemoryRequirements; the ordinary array has the same form.
    """
    driver = Driver()
    driver.needs("cuArrayGetMemoryRequirements")
    driver.start()
    seen = []
    for width, height in ((4096, 4096), (1000, 3001), (8191, 777)):
        start = driver.used()
        twin = driver.made("cuArray3DCreate_v2", array_descriptor(width, height, DEFERRED))
        deferred = driver.used() - start
        needs = (c_uint64 * 4)()
        driver.call("cuArrayGetMemoryRequirements", needs, twin, driver.device())
        driver.call("cuArrayDestroy", twin)
        start = driver.used()
        array = driver.made("cuArray3DCreate_v2", array_descriptor(width, height))
        taken = driver.used() - start
        driver.call("cuArrayDestroy", array)
        seen.append({"deferred": deferred, "stated": needs[0], "taken": taken})
    holds = all(s["deferred"] == 0 and near(s["taken"], s["stated"]) for s in seen)
    return Finding(holds, {"arrays": seen})


@check("facts")
def small_allocations_share_2_mib_and_large_ones_round_up() -> Finding:
    """Allocations of at most 1 MiB share chunks of 2 MiB; larger ones are rounded up to 2 MiB.

    Less one chunk at most: one that is only just larger may go into a chunk that is there already.
    """
    driver = Driver()
    driver.start()
    start = driver.used()
    small = [driver.alloc(512) for _ in range(1024)]
    shared = driver.used() - start
    start = driver.used()
    large = [driver.alloc(size) for size in [MIB + 1] * 8 + [CHUNK + 1] * 8]
    rounded = driver.used() - start
    for address in small + large:
        driver.free(address)
    measured = {"1024 x 512 bytes": shared, "8 x (1 MiB + 1) and 8 x (2 MiB + 1)": rounded}
    return Finding(shared <= CHUNK and near(rounded, 8 * CHUNK + 8 * 2 * CHUNK), measured)


@check("facts")
def a_modules_memory_is_taken_when_its_function_is_loaded() -> Finding:
    """A module's code and variables are taken by cuFuncLoad at the latest.

    The launch after that takes nothing more.
    """
    driver = Driver()
    driver.start()
    driver.launch(driver.function(driver.load(NOTHING), "nothing"))  # lazy parts of the context
    steps, use = {}, [driver.used()]

    def step(name: str) -> None:
        use.append(driver.used())
        steps[name] = use[-1] - use[-2]

    module = driver.load(TABLE)
    step("load")
    function = driver.function(module, "touch")
    step("get function")
    if driver.has("cuFuncLoad"):
        driver.call("cuFuncLoad", function)
        step("load function")
    driver.launch(function)
    step("launch")
    holds = sum(steps.values()) >= TABLE_BYTES and steps["launch"] == 0
    return Finding(holds, {"bytes": steps, "variables": TABLE_BYTES})


@check("facts")
def local_memory_follows_the_formula() -> Finding:
    """The local memory buffer grows by (local bytes - stack limit) x max threads per SM x SMs.

    Within a chunk, at the launch that needs it, once for the context.
    """
    driver = Driver()
    driver.start()
    driver.launch(driver.function(driver.load(NOTHING), "nothing"))
    function = driver.function(driver.load(SPILL), "spill")
    local = driver.made("cuFuncGetAttribute", LOCAL_ATTRIBUTE, function, kind=c_int).value
    if local < LOCAL_BYTES:
        raise NotRunError(f"the driver's compiler left {local} bytes of local memory")
    limit = driver.made("cuCtxGetLimit", 0, kind=c_size_t).value
    out = c_uint64(driver.alloc(64))
    before = driver.used()
    driver.launch(function, out, c_uint(3), c_uint(3))
    grown = driver.used() - before
    threads = driver.attribute(THREADS_PER_SM) * driver.attribute(SMS)
    formula = max(0, local - limit) * threads
    measured = {
        "local bytes": local,
        "stack limit": limit,
        "resident threads": threads,
        "taken": grown,
        "formula": formula,
    }
    return Finding(near(grown, formula), measured)


@check("facts")
def streams_and_events_take_little() -> Finding:
    """A stream takes at most 2 MiB, and 64 events take at most 2 MiB.

    Libraries make several of each for a handle. cgpu charges nothing for them.
    """
    driver = Driver()
    driver.start()
    driver.launch(driver.function(driver.load(NOTHING), "nothing"))
    start, streams = driver.used(), []
    for number in range(64):
        driver.made("cuStreamCreateWithPriority", 1, -1 if number % 2 else 0)
        if number + 1 in {1, 8, 64}:
            streams.append(driver.used() - start)
    before = driver.used()
    for _ in range(64):
        driver.made("cuEventCreate", 0)
    events = driver.used() - before
    measured = {"1, 8 and 64 streams": streams, "64 events": events}
    return Finding(streams[-1] <= 64 * CHUNK and events <= CHUNK, measured)


LIMITS = {  # number in CUlimit, values that reserve memory
    "levels of synchronisation": (3, (4, 8)),
    "pending launches": (4, (1 << 14, 1 << 17)),
    "memory of blocks": (10, (1 << 12, 1 << 16)),
}
LEVEL_BYTES, LAUNCH_BYTES, BLOCKS_PER_SM, UNSUPPORTED = 5120, 8192, 106, (1, 215)


@check("facts")
def a_limit_reserves_no_more_than_is_charged() -> Finding:
    """What a limit of the device runtime or of blocks reserves is within what cgpu charges for it.

    As it is set, at the next launch, and when it is lowered again, which may give memory back.
    """
    driver = Driver()
    driver.start()
    function = driver.function(driver.load(NOTHING), "nothing")
    driver.launch(function)
    sms = driver.attribute(SMS)
    units = {
        "levels of synchronisation": LEVEL_BYTES * driver.attribute(THREADS_PER_SM) * sms,
        "pending launches": LAUNCH_BYTES,
        "memory of blocks": driver.attribute(BLOCKS_PER_SM) * sms,
    }
    seen: dict[str, Any] = {}
    for name, (limit, amounts) in LIMITS.items():
        value = c_size_t()
        if (status := driver.status("cuCtxGetLimit", byref(value), limit)) in UNSUPPORTED:
            seen[name] = f"not supported: {status}"
            continue
        base = driver.used()
        for amount in amounts:
            driver.call("cuCtxSetLimit", limit, c_size_t(amount))
            at_once = driver.used() - base
            driver.launch(function)
            seen[f"{name}, {amount}"] = {
                "at once": at_once,
                "taken": driver.used() - base,
                "cgpu charges": (amount - value.value) * units[name],
            }
        driver.call("cuCtxSetLimit", limit, value)
        driver.launch(function)
        seen[f"{name}, lowered"] = {"taken": driver.used() - base}
    within = [each["taken"] <= each["cgpu charges"] + CHUNK for each in seen.values()
              if "cgpu charges" in each]  # fmt: skip
    return Finding(all(within), seen)


@check("facts")
def nvml_lists_this_process_by_its_pid() -> Finding:
    """NVML lists a process under its host pid, with its bytes.

    And v1 `used` is v2 `used` + `reserved`. How far its total is from cuDeviceTotalMem is shown.
    """
    driver = Driver()
    driver.start()
    driver.alloc(64 * MIB)
    nvml = Nvml()
    gpu = nvml.gpu_of(driver.uuid())
    processes, v1, v2 = nvml.processes(gpu), nvml.memory(gpu), nvml.memory_v2(gpu)
    total = driver.made("cuDeviceTotalMem_v2", driver.device(), kind=c_size_t).value
    measured = {
        "bytes": processes.get(os.getpid()),
        "v1 used": v1.used,
        "v2 used": v2.used,
        "v2 reserved": v2.reserved,
        "NVML total less cuDeviceTotalMem": v1.total - total,
    }
    if os.getpid() not in processes and _may_be_another_pid_namespace():
        raise NotRunError(f"NVML does not list this pid, nor the other checks': {measured}")
    same = near(v1.used, v2.used + (v2.reserved or 0))
    return Finding((processes.get(os.getpid()) or 0) > 64 * MIB and same, measured)


def _may_be_another_pid_namespace() -> bool:
    """A container's first process is seldom an init system with kernel threads beside it."""
    return not Path("/proc/2/comm").exists() or Path("/proc/2/comm").read_text() != "kthreadd\n"
