"""Streams, contexts, threads and graphs that come and go behind the gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab.driver.sim_cuda import read, tell
from lab.shares.gate_world import CLOSED, FREE, OPEN, PRESSED, Gate

if TYPE_CHECKING:
    from lab.driver.cuda_proxied import Proxied

pytestmark = pytest.mark.integration

START = (
    "from lab.calls.gate_calls import *\nimport threading\n"
    "current = context(); kernels = Kernels()\n"
)


def launched_then_quiet(proxied: Proxied, gate: Gate, program: str) -> list[str]:
    """What the program prints about what is left when its process has said that it is quiet."""
    lines = "\n".join(line.removeprefix("        ") for line in program.splitlines())
    with proxied.start(START + lines) as process:
        assert read(process) == "launched"
        gate.set(CLOSED)
        gate.wait_for_quiet()
        tell(process, "")
        out, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    return out.splitlines()


def test_all_work_of_many_streams_and_threads_is_waited_for(proxied: Proxied, gate: Gate) -> None:
    out = launched_then_quiet(
        proxied,
        gate,
        """
        streams = [made(cuda.cuStreamCreate, n % 2) for n in range(16)]
        def work(stream):
            check(cuda.cuCtxSetCurrent(current))
            for n in range(60):
                check(kernels.launch(20, stream))
                check(kernels.launch(20, None, "cuLaunchKernel_ptsz"))
        threads = [threading.Thread(target=work, args=(stream,)) for stream in streams]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        check(kernels.launch(20000, streams[7]))
        show("launched")
        sys.stdin.readline()
        show([done(stream) for stream in [None, *streams]].count(False))
        """,
    )
    assert out == ["0"]


def test_what_is_in_flight_is_bounded_over_all_streams(proxied: Proxied, gate: Gate) -> None:
    """Each stream's first kernel was not counted: 512 were in flight."""
    gate.set(PRESSED)
    out = launched_then_quiet(
        proxied,
        gate,
        """
        streams = [made(cuda.cuStreamCreate, NON_BLOCKING) for n in range(512)]
        for n in range(1000):
            check(kernels.launch(200, streams[n % 512]))
        in_flight = [done(stream) for stream in streams].count(False)
        show("launched")
        sys.stdin.readline()
        show(in_flight)
        """,
    )
    assert int(out[0]) <= 6


def test_threads_that_have_ended_leave_room_for_others(proxied: Proxied, gate: Gate) -> None:
    """Each has a default stream of its own; all of them are waited for, and none is refused."""
    out = launched_then_quiet(
        proxied,
        gate,
        """
        statuses = set()
        def work():
            check(cuda.cuCtxSetCurrent(current))
            statuses.add(kernels.launch(20, None, "cuLaunchKernel_ptsz"))
        for _ in range(9000):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        show("launched")
        sys.stdin.readline()
        show(*statuses, done())
        """,
    )
    assert out == ["0 True"]


def test_work_of_thousands_of_streams_is_waited_for(proxied: Proxied, gate: Gate) -> None:
    gate.set(FREE)
    out = launched_then_quiet(
        proxied,
        gate,
        """
        streams = [made(cuda.cuStreamCreate, NON_BLOCKING) for n in range(4000)]
        for n, stream in enumerate(streams):
            check(kernels.launch(200000 if n == 10 else 20, stream))
        show("launched")
        sys.stdin.readline()
        show([done(stream) for stream in streams].count(False))
        for stream in streams:
            check(cuda.cuStreamDestroy_v2(stream))
        """,
    )
    assert out == ["0"]


def test_a_stream_that_is_destroyed_with_work_is_waited_for(proxied: Proxied, gate: Gate) -> None:
    out = launched_then_quiet(
        proxied,
        gate,
        """
        stream, event = made(cuda.cuStreamCreate, NON_BLOCKING), made(cuda.cuEventCreate, 0)
        check(kernels.launch(200000, stream))
        check(cuda.cuEventRecord(event, stream))
        check(cuda.cuStreamDestroy_v2(stream))
        show("launched")
        sys.stdin.readline()
        show(cuda.cuEventQuery(event))
        """,
    )
    assert out == ["0"]


def test_streams_that_come_and_go_with_the_same_handles(proxied: Proxied, gate: Gate) -> None:
    out = launched_then_quiet(
        proxied,
        gate,
        """
        for n in range(3000):
            stream = made(cuda.cuStreamCreate, NON_BLOCKING)
            check(kernels.launch(20, stream))
            check(cuda.cuStreamDestroy_v2(stream))
        show("launched")
        sys.stdin.readline()
        show(kernels.launch(20, stream) != 0)
        """,
    )
    assert out == ["True"]


def test_a_context_takes_its_work_along(proxied: Proxied, gate: Gate) -> None:
    """Also one of many, and a primary context that is reset."""
    out = launched_then_quiet(
        proxied,
        gate,
        """
        for n in range(80):
            other = made(cuda.cuCtxCreate_v2, 0, 0)
            more = Kernels()
            check(more.launch(20, made(cuda.cuStreamCreate, 0)))
            check(more.launch(20))
            check(cuda.cuCtxDestroy_v2(other))
            check(kernels.launch(20))
        for n in range(3):
            check(cuda.cuCtxSetCurrent(made(cuda.cuDevicePrimaryCtxRetain, 0)))
            more = Kernels()
            check(more.launch(20))
            check(cuda.cuDevicePrimaryCtxReset_v2(0))
        check(cuda.cuCtxSetCurrent(current))
        show("launched")
        sys.stdin.readline()
        show(done())
        """,
    )
    assert out == ["True"]


def test_nothing_of_ours_is_put_into_a_stream_that_captures(proxied: Proxied, gate: Gate) -> None:
    """As many nodes as launches, whatever is new or long, and whatever the gate says."""
    program = """
    for mode in (0, 1, 2):
        stream = made(cuda.cuStreamCreate, NON_BLOCKING if mode else 0)
        check(kernels.launch(20, stream))
        check(cuda.cuStreamBeginCapture_v2(stream, mode))
        for n in range(200):
            check(kernels.launch((20, 20000, 200000)[n % 3], stream))
        show("captures")
        sys.stdin.readline()
        for n in range(200):
            check(kernels.launch((20, 20000, 200000)[n % 3], stream))
        graph = c_void_p()
        check(cuda.cuStreamEndCapture(stream, byref(graph)))
        show(node_count(graph))
    """
    lines = "\n".join(line.removeprefix("    ") for line in program.splitlines())
    with proxied.start(START + lines) as process:
        for state in (CLOSED, PRESSED, FREE):
            assert read(process) == "captures"
            gate.set(state)
            tell(process, "")
            assert read(process) == "400"
            gate.set(OPEN)
        process.communicate(timeout=60)


def test_the_monitor_leaves_a_stream_alone_that_captures(proxied: Proxied, gate: Gate) -> None:
    """Launches of known kernels are counted until somebody asks: then they are forgotten."""
    program = """
    stream = made(cuda.cuStreamCreate, NON_BLOCKING)
    for n in range(3):
        check(kernels.launch(20, stream))
        check(cuda.cuStreamSynchronize(stream))
    check(kernels.launch(20, stream))
    check(cuda.cuStreamBeginCapture_v2(stream, 0))
    for n in range(3):
        check(kernels.launch(20, stream))
    show("captures")
    sys.stdin.readline()
    graph = c_void_p()
    check(cuda.cuStreamEndCapture(stream, byref(graph)))
    show(node_count(graph))
    """
    lines = "\n".join(line.removeprefix("    ") for line in program.splitlines())
    for state in (CLOSED, PRESSED):
        gate.set(OPEN)
        with proxied.start(START + lines) as process:
            assert read(process) == "captures"
            gate.set(state)
            gate.wait(lambda: all(work.active == 0 or work.idle for work in gate.works()))
            tell(process, "")
            assert read(process) == "3"
            process.communicate(timeout=60)


def test_a_late_marker_spoils_no_capture(proxied: Proxied, gate: Gate) -> None:
    """The stream is asked whether its marker was lost, but not while it captures."""
    program = """
    stream = made(cuda.cuStreamCreate, NON_BLOCKING)
    check(kernels.launch(200000, stream))
    show("launched")
    sys.stdin.readline()
    check(cuda.cuStreamBeginCapture_v2(stream, 2))
    show("captures")
    sys.stdin.readline()
    graph = c_void_p()
    show(cuda.cuStreamEndCapture(stream, byref(graph)), done(stream))
    """
    lines = "\n".join(line.removeprefix("    ") for line in program.splitlines())
    with proxied.start(START + lines) as process:
        assert read(process) == "launched"
        gate.set(PRESSED)
        gate.wait(lambda: gate.work.markers == 1)
        tell(process, "")
        assert read(process) == "captures"
        gate.set(CLOSED)
        gate.wait_for_quiet()
        tell(process, "")
        assert read(process) == "0 True"
        process.communicate(timeout=60)


def test_a_graph_is_one_launch_that_is_learnt_and_waited_for(proxied: Proxied, gate: Gate) -> None:
    out = launched_then_quiet(
        proxied,
        gate,
        """
        def body(stream):
            for n in range(10):
                check(kernels.launch(20, stream))
        exec = made(cuda.cuGraphInstantiateWithFlags, captured(body), c_uint64(0))
        for n in range(50):
            check(cuda.cuGraphLaunch(exec, None))
        show("launched")
        sys.stdin.readline()
        show(done())
        """,
    )
    assert out == ["True"]


@pytest.mark.usefixtures("gate")
def test_work_in_flight_is_bounded_in_time(proxied: Proxied) -> None:
    """Some hundred short kernels fit, of long ones no more than two."""
    program = """
    import time
    check(kernels.launch(20000)); check(kernels.launch(20000)); check(cuda.cuCtxSynchronize())
    begun = time.monotonic()
    for n in range(20):
        check(kernels.launch(20000))
    took = time.monotonic() - begun
    show(took > 17 * 0.02)
    """
    lines = "\n".join(line.removeprefix("    ") for line in program.splitlines())
    assert proxied.check(START + lines).out == ["True"]


def test_work_in_flight_is_bounded_for_all_streams_together(proxied: Proxied, gate: Gate) -> None:
    """While nobody waits 13 ms of it: a newcomer waits for that, however many streams there are."""
    program = """
    import time
    streams = [made(cuda.cuStreamCreate, NON_BLOCKING) for _ in range(13)]
    for _ in range(3):
        [check(kernels.launch(200, stream)) for stream in streams]; check(cuda.cuCtxSynchronize())
    begun = time.monotonic()
    for _ in range(40):
        [check(kernels.launch(200, stream)) for stream in streams]
    took = time.monotonic() - begun
    show(took > 40 * 13 * 200e-6 - 0.024)
    """
    gate.set(OPEN)
    lines = "\n".join(line.removeprefix("    ") for line in program.splitlines())
    assert proxied.check(START + lines).out == ["True"]


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("how", ["function", "callback", "graph"])
@pytest.mark.usefixtures("gate")
def test_a_thread_that_the_gpu_waits_for_may_launch_on(
    proxied: Proxied, how: str, *, known: bool
) -> None:
    """What is in flight ends only after the launches: the driver would take them all."""
    program = """
    stream = made(cuda.cuStreamCreate, NON_BLOCKING)
    for _ in range(5 if sys.argv[2] == "True" else 0):
        check(kernels.launch(20, stream)); check(cuda.cuCtxSynchronize())
    go = threading.Event()
    function = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: go.wait())
    callback = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_void_p)(lambda *_: go.wait())
    if sys.argv[1] == "function":
        check(cuda.cuLaunchHostFunc(stream, function, None))
    elif sys.argv[1] == "callback":
        check(cuda.cuStreamAddCallback(stream, callback, None, 0))
    else:
        graph = captured(lambda into: check(cuda.cuLaunchHostFunc(into, function, None)))
        exec = made(cuda.cuGraphInstantiateWithFlags, graph, c_uint64(0))
        check(cuda.cuGraphLaunch(exec, stream))
    for _ in range(400 if sys.argv[2] == "True" else 4):
        check(kernels.launch(20, stream))
    go.set()
    show(cuda.cuCtxSynchronize())
    """
    lines = "\n".join(line.removeprefix("    ") for line in program.splitlines())
    assert proxied.check(START + lines, how, str(known)).out == ["0"]
