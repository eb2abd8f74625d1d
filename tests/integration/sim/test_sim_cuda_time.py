"""The simulated GPU's timeline: who has how much of it, and how programs learn where it is."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cgpu_sim import gpu_times, make_driver_dir
from lab.driver.sim_cuda import Driver, make_driver, read, tell

pytestmark = pytest.mark.integration

WORD = """
        import mmap
        page = mmap.mmap(-1, 4096)
        host = ctypes.addressof(c_char.from_buffer(page))
        def word(at=0):
            return c_uint.from_address(host + at).value
        def registered():
            check(cuda.cuMemHostRegister_v2(c_void_p(host), c_size_t(4096), 3))
            address = made(cuda.cuMemHostGetDevicePointer_v2, c_void_p(host), 0, kind=c_uint64)
            assert address.value == host
            return address
"""
BUSY = """
    start()
    function = kernel(b"plain")
    show("ready")
    while cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, None, None, None) == 0:
        pass
"""


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return make_driver(tmp_path / "driver")


@pytest.mark.parametrize("version", ["", "_v2", "_ptsz", "_v2_ptsz"])
def test_a_value_is_written_when_the_stream_gets_there(driver: Driver, version: str) -> None:
    out = driver.check(f"""{WORD}
        start()
        address, stream = registered(), made(cuda.cuStreamCreate, 1)
        check(launch(kernel(b"spin_100000us"), stream))
        check(cuda.cuStreamWriteValue32{version}(stream, address, 7, 0))
        check(launch(kernel(b"spin_100000us"), stream))
        check(cuda.cuStreamWriteValue64{version}(stream, c_uint64(host + 8), c_uint64(8), 0))
        show(word(), word(8))
        began = time.monotonic()
        while not word() and time.monotonic() < began + 10:
            time.sleep(0.001)
        show(word(), word(8), cuda.cuStreamQuery(stream))
        check(cuda.cuStreamSynchronize(stream))
        show(word(), word(8))
        """)
    assert out == ["0 0", "7 0 600", "7 8"]


def test_values_are_written_before_a_query_says_that_the_stream_is_done(driver: Driver) -> None:
    out = driver.check(f"""{WORD}
        start()
        address, event = registered(), made(cuda.cuEventCreate, 2)
        function = kernel(b"plain")
        wrong = 0
        for value in range(1, 500):
            check(launch(function))
            check(cuda.cuStreamWriteValue32_v2(None, address, value, 0))
            check(cuda.cuEventRecord(event, None))
            while cuda.cuEventQuery(event) if value % 2 else cuda.cuStreamQuery(None):
                pass
            wrong += word() != value
        show(wrong)
        """)
    assert out == ["0"]


def test_values_of_two_streams_come_each_when_its_own_work_has_ended(driver: Driver) -> None:
    out = driver.check(f"""{WORD}
        start()
        address, streams = registered(), [made(cuda.cuStreamCreate, 1) for _ in range(2)]
        check(launch(kernel(b"spin_2000us"), streams[0]))
        check(launch(kernel(b"spin_100000us"), streams[1]))
        check(cuda.cuStreamWriteValue32_v2(streams[1], c_uint64(host + 8), 5, 0))
        check(cuda.cuStreamWriteValue32_v2(streams[0], address, 1, 0))
        began = time.monotonic()
        while not word() and time.monotonic() < began + 10:
            time.sleep(0.001)
        show(word(), word(8))
        check(cuda.cuStreamWriteValue32_v2(streams[0], address, 2, 0))
        check(cuda.cuCtxSynchronize())
        show(word(), word(8))
        """)
    assert out == ["1 0", "2 5"]


def test_a_value_behind_a_host_function_waits_for_it(driver: Driver) -> None:
    out = driver.check(f"""{WORD}
        start()
        address, seen = registered(), []
        note = ctypes.CFUNCTYPE(None, c_void_p)(lambda data: seen.append(word()))
        check(launch(kernel(b"spin_100000us")))
        check(cuda.cuLaunchHostFunc(None, note, None))
        check(cuda.cuStreamWriteValue32_v2(None, address, 9, 0))
        check(cuda.cuCtxSynchronize())
        show(seen, word())
        """)
    assert out == ["[0] 9"]


def test_nothing_is_written_into_memory_that_was_given_back(driver: Driver) -> None:
    out = driver.check(f"""{WORD}
        start()
        address = registered()
        check(launch(kernel(b"spin_100000us")))
        check(cuda.cuStreamWriteValue32_v2(None, address, 9, 0))
        check(cuda.cuMemHostUnregister(c_void_p(host)))
        check(cuda.cuCtxSynchronize())
        show(word(), cuda.cuStreamWriteValue32_v2(None, address, 9, 0))
        """)
    assert out == ["0 1"]


@pytest.mark.parametrize(("switch", "expected"), [("", "0 1 1 0 1 0"), ("1", "801 0 0 0 0 0")])
def test_a_driver_without_written_values_says_so(
    driver: Driver, switch: str, expected: str
) -> None:
    environment = {"CGPU_SIM_NO_WRITE_VALUE": switch} if switch else {}
    out = driver.check(
        f"""{WORD}
        start()
        address, value = registered(), c_int()
        answers = [cuda.cuStreamWriteValue32_v2(None, address, 1, 0)]
        for attribute in (92, 93, 94, 122, 123):
            check(cuda.cuDeviceGetAttribute(byref(value), attribute, 0))
            answers.append(value.value)
        show(*answers)
        """,
        **environment,
    )
    assert out == [expected]


def test_the_queue_takes_more_than_it_holds(driver: Driver) -> None:
    """A launch waits for room meanwhile, and other calls do not wait for it."""
    out = driver.check("""
        import threading
        context, function = start(), kernel(b"spin_2000us")
        def other():
            check(cuda.cuCtxSetCurrent(context))
            time.sleep(0.2)
            show(alloc(1)[0], len(launched) < 1100)
        thread, launched = threading.Thread(target=other), []
        thread.start()
        for _ in range(1200):
            launched.append(launch(function))
        thread.join()
        show(set(launched), cuda.cuStreamQuery(None))
        """)
    assert out == ["0 True", "{0} 600"]


def test_the_time_that_each_process_had_can_be_read(driver: Driver) -> None:
    """Two that always have work have had the same, and what runs at the moment counts."""
    with (
        driver.start(BUSY, CGPU_SIM_KERNEL_US="500", CGPU_SIM_TAG="one") as one,
        driver.start(BUSY, CGPU_SIM_KERNEL_US="20000", CGPU_SIM_TAG="two") as two,
    ):
        assert read(one) == read(two) == "ready"
        time.sleep(0.3)
        before = {t.tag: t for t in gpu_times(driver.path)}
        time.sleep(1)
        after = {t.tag: t for t in gpu_times(driver.path)}
        one.kill()
        two.kill()
    assert (after["one"].pid, after["two"].pid) == (one.pid, two.pid)
    had = {tag: after[tag].busy_ns - before[tag].busy_ns for tag in after}
    # A kernel of 20 ms is interrupted at the end of a turn of 1 ms, as in tests/model.
    assert 0.9 < had["one"] / had["two"] < 1.1
    assert sum(had.values()) > 0.9e9


def test_kernels_of_all_processes_run_whole_and_in_order_if_the_machine_says_so(
    tmp_path: Path,
) -> None:
    """A short one waits for three long ones of another process, which were launched before it."""
    driver = Driver(make_driver_dir(tmp_path / "in-order", in_order=True))
    with driver.start("""
        start()
        show("ready")
        sys.stdin.readline()
        for _ in range(3):
            check(launch(kernel(b"spin_100000us")))
        show("queued")
        sys.stdin.readline()
    """) as long:
        assert read(long) == "ready"
        with driver.start("""
            start()
            function = kernel(b"plain")
            show("ready")
            sys.stdin.readline()
            began = time.monotonic()
            check(launch(function))
            check(cuda.cuCtxSynchronize())
            show(time.monotonic() - began > 0.25)
        """) as short:
            assert read(short) == "ready"
            tell(long, "go")
            assert read(long) == "queued"
            tell(short, "go")
            assert read(short) == "True"
            long.kill()


def test_turning_to_another_process_takes_the_gpu_time(tmp_path: Path) -> None:
    driver = Driver(make_driver_dir(tmp_path / "slow", switch_us=1000))
    with (
        driver.start(BUSY, CGPU_SIM_KERNEL_US="100", CGPU_SIM_TAG="one") as one,
        driver.start(BUSY, CGPU_SIM_KERNEL_US="100", CGPU_SIM_TAG="two") as two,
    ):
        assert read(one) == read(two) == "ready"
        time.sleep(0.3)
        before = sum(t.busy_ns for t in gpu_times(driver.path))
        time.sleep(1)
        busy = sum(t.busy_ns for t in gpu_times(driver.path)) - before
        one.kill()
        two.kill()
    assert 0.4e9 < busy < 0.62e9


def test_work_begins_and_is_seen_to_end_as_late_as_the_machine_says(tmp_path: Path) -> None:
    late = Driver(make_driver_dir(tmp_path / "late", dispatch_us=30_000, completion_us=40_000))
    out = late.check(f"""{WORD}
        start()
        function, address = kernel(), registered()
        began = time.monotonic()
        check(launch(function))
        check(cuda.cuStreamWriteValue32_v2(None, address, 1, 0))
        time.sleep(0.035)
        show(word(), cuda.cuStreamQuery(None))
        check(cuda.cuCtxSynchronize())
        show(word(), time.monotonic() - began >= 0.07)
        """)
    assert out == ["0 600", "1 True"]


def test_a_process_that_is_killed_leaves_the_gpu_to_others(driver: Driver) -> None:
    with driver.start(BUSY, CGPU_SIM_KERNEL_US="100000") as endless:
        assert read(endless) == "ready"
        time.sleep(0.1)
        with driver.start("""
            start()
            function = kernel(b"plain")
            sys.stdin.readline()
            began = time.monotonic()
            for _ in range(10):
                check(launch(function))
                check(cuda.cuCtxSynchronize())
            show(time.monotonic() - began < 0.5)
        """) as other:
            endless.kill()
            endless.wait()
            tell(other, "")
            assert read(other) == "True"
