"""Facts about what waits for the program, and what runs on: host functions, captures."""

from __future__ import annotations

import ctypes
import threading
import time
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

from gpu.check import MIB, Finding, check
from gpu.interface.driver import NOTHING, Driver, pool_properties

NOT_READY = 600
PATIENCE_S = 10
QUEUE = 1000
SIZE = 64 * MIB
RESERVED, USED = 5, 7  # CUmemPool_attribute


def _launches(driver: Driver) -> tuple[c_void_p, c_void_p, c_void_p]:
    """A kernel that does nothing, and two streams that wait for nobody."""
    driver.start()
    module = driver.made("cuModuleLoadData", NOTHING.encode())
    kernel = driver.made("cuModuleGetFunction", module, b"nothing")
    first, second = (driver.made("cuStreamCreate", c_uint(1)) for _ in range(2))
    return kernel, first, second


def _launch(driver: Driver, kernel: c_void_p, stream: c_void_p) -> None:
    driver.call("cuLaunchKernel", kernel, 1, 1, 1, 32, 1, 1, 0, stream, None, None)


def _held_up(driver: Driver, stream: c_void_p, go: threading.Event) -> object:
    """Put a host function into the stream that returns when ``go`` is set."""
    function = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: go.wait() and None)
    driver.call("cuLaunchHostFunc", stream, function, None)
    return function


@check("facts")
def a_host_function_holds_up_its_own_stream_only() -> Finding:
    """What is behind a host function in its stream does not begin; other streams go on meanwhile.

    Decides whether a stream in a host function takes none of the GPU.
    """
    driver, go = Driver(), threading.Event()
    kernel, held, free = _launches(driver)
    function = _held_up(driver, held, go)
    _launch(driver, kernel, held)
    _launch(driver, kernel, free)
    driver.call("cuStreamSynchronize", free)
    time.sleep(0.05)
    waiting = driver.status("cuStreamQuery", held)
    go.set()
    driver.call("cuStreamSynchronize", held)
    del function
    return Finding(waiting == NOT_READY, {"behind it, meanwhile": waiting})


@check("facts")
def the_drivers_queue_holds_a_thousand_launches() -> Finding:
    """At least 1,000 launches go into a stream behind a host function before a thread waits.

    Decides how many launches are let go behind what gets nowhere.
    """
    driver, go = Driver(), threading.Event()
    kernel, held, _ = _launches(driver)
    function = _held_up(driver, held, go)
    count = 0
    released = threading.Timer(PATIENCE_S, go.set)  # a thread that waits is let go
    released.start()
    begun = time.monotonic()
    while count < QUEUE and not go.is_set():
        _launch(driver, kernel, held)
        count += 1
    took = time.monotonic() - begun
    fits = count == QUEUE and not go.is_set()
    released.cancel()
    go.set()
    driver.sync()
    del function
    return Finding(fits, {"launches": count, "seconds": round(took, 3)})


def _captures(driver: Driver, stream: c_void_p) -> int:
    status = c_int()
    driver.call("cuStreamIsCapturing", stream, byref(status))
    return status.value


@check("facts")
def what_a_stream_was_given_runs_on_while_it_captures() -> Finding:
    """Work from before a capture ends during it, an event from before says so, and captures end.

    Decides whether a marker before a capture is enough, and how the end of a capture is known.
    """
    driver, go = Driver(), threading.Event()
    kernel, stream, _ = _launches(driver)
    event = driver.made("cuEventCreate", c_uint(2))
    function = _held_up(driver, stream, go)
    _launch(driver, kernel, stream)
    driver.call("cuEventRecord", event, stream)
    driver.call("cuStreamBeginCapture_v2", stream, 2)
    before, during = driver.status("cuEventQuery", event), _captures(driver, stream)
    go.set()
    end = time.monotonic() + PATIENCE_S
    while driver.status("cuEventQuery", event) == NOT_READY and time.monotonic() < end:
        time.sleep(0.001)
    behind = driver.status("cuEventQuery", event)
    driver.made_last("cuStreamEndCapture", stream)
    after = _captures(driver, stream)
    del function
    holds = (before, during, behind, after) == (NOT_READY, 1, 0, 0)
    return Finding(holds, {"held": before, "ended": behind, "captures": during, "then": after})


@check("facts")
def memory_freed_behind_a_host_function_is_free_in_that_stream() -> Finding:
    """Memory of a pool that is freed in a held up stream is not used any more, but reserved.

    The same stream can have it again at once. It goes when the stream is synchronised. Decides
    whether cgpu foresees by how much a pool grows.
    """
    driver, go = Driver(), threading.Event()
    driver.start()
    pool = driver.made("cuMemPoolCreate", pool_properties())
    stream = driver.made("cuStreamCreate", c_uint(1))
    steps: dict[str, tuple[int, ...]] = {}

    def step(name: str) -> None:
        values = (c_uint64(), c_uint64())
        for value, attribute in zip(values, (RESERVED, USED), strict=True):
            driver.call("cuMemPoolGetAttribute", pool, attribute, byref(value))
        steps[name] = tuple(value.value for value in values)

    def allocate() -> c_uint64:
        out = c_uint64()
        driver.call("cuMemAllocFromPoolAsync", byref(out), c_size_t(SIZE), pool, stream)
        return out

    first = allocate()
    step("allocated")
    function = _held_up(driver, stream, go)
    driver.call("cuMemFreeAsync", first, stream)
    step("freed")
    driver.call("cuMemPoolTrimTo", pool, c_size_t(0))
    step("trimmed")
    second = allocate()
    step("allocated again")
    driver.call("cuMemFreeAsync", second, stream)
    go.set()
    driver.call("cuStreamSynchronize", stream)
    step("synchronised")
    del function
    whole, used = steps["allocated"]
    freed = steps["freed"] == steps["trimmed"] == (whole, 0)
    again = steps["allocated again"] == (whole, used)
    return Finding(freed and again and steps["synchronised"] == (0, 0), {"reserved, used": steps})
