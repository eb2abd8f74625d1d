"""Streams, events, capture and graphs of the simulated driver follow the driver's rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.driver.sim_cuda import Driver, make_driver, read, tell

pytestmark = pytest.mark.integration

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return make_driver(tmp_path / "driver")


def test_kernels_take_the_time_that_their_names_say(driver: Driver) -> None:
    out = driver.check("""
        start()
        stream, function = made(cuda.cuStreamCreate, 0), kernel()
        first, last = made(cuda.cuEventCreate, 0), made(cuda.cuEventCreate, 0)
        check(cuda.cuEventRecord(first, stream))
        for _ in range(5):
            check(launch(function, stream))
        check(cuda.cuEventRecord(last, stream))
        show(cuda.cuStreamQuery(stream), cuda.cuEventQuery(last))
        check(cuda.cuEventSynchronize(last))
        elapsed = c_float()
        check(cuda.cuEventElapsedTime(byref(elapsed), first, last))
        show(cuda.cuStreamQuery(stream), elapsed.value >= 10)
    """)
    assert out == ["600 600", "0 True"]


def test_more_launches_than_the_queue_holds_wait_their_turn(driver: Driver) -> None:
    out = driver.check(
        """
        start()
        function = kernel(b"plain")
        first, last = made(cuda.cuEventCreate, 0), made(cuda.cuEventCreate, 0)
        check(cuda.cuEventRecord(first, None))
        for _ in range(1000):
            check(launch(function))
        check(cuda.cuEventRecord(last, None))
        check(cuda.cuCtxSynchronize())
        elapsed = c_float()
        check(cuda.cuEventElapsedTime(byref(elapsed), first, last))
        show(elapsed.value >= 100)
        """,
        CGPU_SIM_KERNEL_US="100",
    )
    assert out == ["True"]


def test_a_process_gets_its_turn_while_another_has_much_to_do(driver: Driver) -> None:
    busy = """
        start()
        stream, function = made(cuda.cuStreamCreate, 0), kernel(b"spin_100000us")
        for _ in range(30):
            check(launch(function, stream))
        show(cuda.cuStreamQuery(stream))
        sys.stdin.readline()
        show(cuda.cuStreamQuery(stream))
    """
    with driver.start(busy) as process:
        assert read(process) == "600"
        out = driver.check("""
            start()
            check(launch(kernel(b"plain")))
            show(cuda.cuCtxSynchronize())
        """)
        assert out == ["0"]
        tell(process, "")
        assert read(process) == "600"


def test_a_kernel_that_runs_is_not_done(driver: Driver) -> None:
    out = driver.check("""
        start()
        check(launch(kernel(b"spin_100000us")))
        show(cuda.cuStreamQuery(None), cuda.cuCtxSynchronize(), cuda.cuStreamQuery(None))
    """)
    assert out == ["600 0 0"]


def test_host_functions_run_in_the_order_of_the_stream(driver: Driver) -> None:
    out = driver.check("""
        start()
        stream, function = made(cuda.cuStreamCreate, 0), kernel(b"spin_100000us")
        seen = []
        note = ctypes.CFUNCTYPE(None, c_void_p)(lambda data: seen.append(data))
        check(launch(function, stream))
        for number in (1, 2, 3):
            check(cuda.cuLaunchHostFunc(stream, note, c_void_p(number)))
        time.sleep(0.02)
        before = list(seen)
        word = made(cuda.cuMemAlloc_v2, c_size_t(8), kind=c_uint64)
        check(cuda.cuStreamWriteValue64_v2(stream, word, c_uint64(77), 0))
        check(cuda.cuStreamSynchronize(stream))
        show(before, seen, c_uint64.from_address(word.value).value)
    """)
    assert out == ["[] [1, 2, 3] 77"]


@pytest.mark.parametrize(
    ("illegal", "code"),
    [
        ("alloc(1)[0]", 900),
        ("free(0)", 900),
        ("cuda.cuStreamSynchronize(stream)", 900),
        ("cuda.cuStreamQuery(stream)", 900),
        ("cuda.cuCtxSynchronize()", 900),
        ("launch(function)", 906),
        ("cuda.cuMemsetD8_v2(address, 0, c_size_t(1))", 906),
        ("cuda.cuStreamIsCapturing(None, byref(c_int()))", 906),
        ("cuda.cuEventQuery(made_before)", 900),
    ],
)
def test_an_illegal_call_fails_and_invalidates_the_capture(
    driver: Driver, illegal: str, code: int
) -> None:
    invalidates = "IsCapturing" not in illegal
    out = driver.check(f"""
        start()
        stream, function = made(cuda.cuStreamCreate, 0), kernel()
        address = c_uint64(alloc(64)[1])
        made_before = made(cuda.cuEventCreate, 0)
        check(cuda.cuStreamBeginCapture_v2(stream, {GLOBAL}))
        check(launch(function, stream))
        show({illegal})
        show(launch(function, stream), cuda.cuStreamEndCapture(stream, byref(c_void_p())))
        show(launch(function, stream))
    """)
    assert out == [str(code), "901 901" if invalidates else "0 0", "0"]


def test_a_relaxed_capture_permits_allocation(driver: Driver) -> None:
    out = driver.check(f"""
        start()
        stream = made(cuda.cuStreamCreate, 1)
        mode = c_int({RELAXED})
        check(cuda.cuStreamBeginCapture_v2(stream, {RELAXED}))
        show(alloc(1)[0], cuda.cuStreamEndCapture(stream, byref(c_void_p())))
        check(cuda.cuStreamBeginCapture_v2(stream, {GLOBAL}))
        check(cuda.cuThreadExchangeStreamCaptureMode(byref(mode)))
        show(alloc(1)[0], mode.value, cuda.cuStreamEndCapture(stream, byref(c_void_p())))
    """)
    assert out == ["0 0", "0 0 0"]


def test_capture_follows_events_into_other_streams(driver: Driver) -> None:
    out = driver.check(f"""
        start()
        one, two, three = (made(cuda.cuStreamCreate, 1) for _ in range(3))
        fork, join = made(cuda.cuEventCreate, 2), made(cuda.cuEventCreate, 2)
        function, graph, count = kernel(), c_void_p(), c_size_t()
        check(cuda.cuStreamBeginCapture_v2(one, {GLOBAL}))
        check(cuda.cuEventRecord(fork, one))
        check(cuda.cuStreamWaitEvent(two, fork, 0))
        check(launch(function, one)), check(launch(function, two))
        show(cuda.cuEventQuery(fork), cuda.cuStreamEndCapture(two, byref(graph)))
        show(cuda.cuStreamEndCapture(one, byref(graph)))
        for joined in (False, True):
            check(cuda.cuStreamBeginCapture_v2(one, {GLOBAL}))
            check(cuda.cuEventRecord(fork, one))
            check(cuda.cuStreamWaitEvent(two, fork, 0))
            check(launch(function, one)), check(launch(function, two))
            if joined:
                check(cuda.cuEventRecord(join, two))
                check(cuda.cuStreamWaitEvent(one, join, 0))
            show(cuda.cuStreamEndCapture(one, byref(graph)))
        check(cuda.cuGraphGetNodes(graph, None, byref(count)))
        show(count.value, cuda.cuStreamEndCapture(three, byref(graph)))
        check(cuda.cuStreamBeginCapture_v2(one, {GLOBAL}))
        check(cuda.cuEventRecord(join, three))
        show(cuda.cuStreamWaitEvent(one, join, 0))
    """)
    assert out == ["907 903", "901", "904", "0", "2 401", "905"]


def test_two_captures_cannot_be_merged(driver: Driver) -> None:
    out = driver.check(f"""
        start()
        one, two = (made(cuda.cuStreamCreate, 1) for _ in range(2))
        event = made(cuda.cuEventCreate, 2)
        check(cuda.cuStreamBeginCapture_v2(one, {GLOBAL}))
        check(cuda.cuStreamBeginCapture_v2(two, {GLOBAL}))
        check(cuda.cuEventRecord(event, one))
        show(cuda.cuStreamWaitEvent(two, event, 0))
        show(cuda.cuStreamBeginCapture_v2(one, {GLOBAL}), cuda.cuStreamBeginCapture_v2(None, 0))
    """)
    assert out == ["902", "401 900"]


def test_a_capture_ends_in_the_thread_that_began_it(driver: Driver) -> None:
    out = driver.check(f"""
        import threading
        context, stream = start(), made(cuda.cuStreamCreate, 1)
        check(cuda.cuStreamBeginCapture_v2(stream, {THREAD_LOCAL}))
        def other():
            check(cuda.cuCtxSetCurrent(context))
            show(cuda.cuStreamEndCapture(stream, byref(c_void_p())), alloc(1)[0])
        thread = threading.Thread(target=other)
        thread.start(), thread.join()
        show(alloc(1)[0], cuda.cuStreamEndCapture(stream, byref(c_void_p())))
    """)
    assert out == ["908 0", "900 901"]


def test_a_graph_runs_its_copies_at_launch_and_not_before(driver: Driver) -> None:
    out = driver.check(f"""
        start()
        stream, graph, run = made(cuda.cuStreamCreate, 0), c_void_p(), c_void_p()
        address = c_uint64(alloc(64)[1])
        check(cuda.cuMemsetD8_v2(address, 1, c_size_t(64)))
        check(cuda.cuStreamBeginCapture_v2(stream, {GLOBAL}))
        check(cuda.cuMemsetD8Async(address, 9, c_size_t(64), stream))
        check(cuda.cuStreamEndCapture(stream, byref(graph)))
        check(cuda.cuGraphInstantiateWithFlags(byref(run), graph, c_uint64(0)))
        check(cuda.cuGraphDestroy(graph))
        back = ctypes.create_string_buffer(1)
        for _ in range(2):
            check(cuda.cuMemcpyDtoH_v2(back, address, c_size_t(1)))
            show(back.raw[0])
            check(cuda.cuGraphLaunch(run, stream)), check(cuda.cuStreamSynchronize(stream))
    """)
    assert out == ["1", "9"]


def test_graph_memory_is_reserved_by_launches_until_trimmed(driver: Driver) -> None:
    out = driver.check(f"""
        start()
        stream, graph, run = made(cuda.cuStreamCreate, 1), c_void_p(), c_void_p()
        base, address = used_mib(), c_uint64()
        check(cuda.cuStreamBeginCapture_v2(stream, {GLOBAL}))
        check(cuda.cuMemAllocAsync(byref(address), c_size_t(10 * MIB), stream))
        check(cuda.cuMemFreeAsync(address, stream))
        check(cuda.cuStreamEndCapture(stream, byref(graph)))
        check(cuda.cuGraphInstantiateWithFlags(byref(run), graph, c_uint64(0)))
        show(used_mib() - base, cuda.cuGraphClone(byref(c_void_p()), graph))
        show(cuda.cuGraphInstantiateWithFlags(byref(c_void_p()), graph, c_uint64(0)))
        check(cuda.cuGraphDestroy(graph))
        for _ in range(3):
            check(cuda.cuGraphLaunch(run, stream))
        attribute = lambda n: made(lambda out: cuda.cuDeviceGetGraphMemAttribute(0, n, out),
                                   kind=c_uint64).value // MIB
        show(used_mib() - base, *map(attribute, range(4)))
        check(cuda.cuDeviceGraphMemTrim(0))
        show(used_mib() - base)
    """)
    assert out == ["0.0 801", "801", "10.0 0 10 10 10", "0.0"]


def test_graph_memory_left_allocated_must_be_freed_before_the_next_launch(driver: Driver) -> None:
    out = driver.check(f"""
        start()
        stream, graph, run = made(cuda.cuStreamCreate, 1), c_void_p(), c_void_p()
        address = c_uint64()
        check(cuda.cuStreamBeginCapture_v2(stream, {GLOBAL}))
        check(cuda.cuMemAllocAsync(byref(address), c_size_t(10 * MIB), stream))
        check(cuda.cuStreamEndCapture(stream, byref(graph)))
        check(cuda.cuGraphInstantiateWithFlags(byref(run), graph, c_uint64(0)))
        show(*(cuda.cuGraphLaunch(run, stream) for _ in range(2)), free(address.value))
        show(*(cuda.cuGraphLaunch(run, stream) for _ in range(2)))
    """)
    assert out == ["0 1 0", "0 1"]


def test_per_thread_entry_points_use_a_stream_of_their_own(driver: Driver) -> None:
    """Work on the legacy stream is illegal here, work on the thread's own stream is not."""
    out = driver.check(f"""
        start()
        stream, function = made(cuda.cuStreamCreate, 0), kernel()
        arguments = (function, 1, 1, 1, 32, 1, 1, 0, None, None, None)
        check(cuda.cuStreamBeginCapture_v2(stream, {GLOBAL}))
        show(cuda.cuLaunchKernel_ptsz(*arguments), cuda.cuLaunchKernel(*arguments))
    """)
    assert out == ["0 906"]
