"""Streams that begin to capture while what they were given before still runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab.driver.sim_cuda import ask, read, tell
from lab.shares.gate_world import CLOSED, FREE, OPEN, PRESSED, Gate

if TYPE_CHECKING:
    from lab.driver.cuda_proxied import Proxied

pytestmark = pytest.mark.integration

START = """
from lab.calls.gate_calls import *
from ctypes import byref, c_size_t, c_uint64, c_void_p
current = context(); kernels = Kernels()
stream, other = made(cuda.cuStreamCreate, NON_BLOCKING), made(cuda.cuStreamCreate, NON_BLOCKING)
blocking = made(cuda.cuStreamCreate, 0)
def ended(stream, how=""):
    graph = c_void_p()
    check(getattr(cuda, "cuStreamEndCapture" + how)(stream, byref(graph)))
    return graph
check(kernels.launch(20)); check(cuda.cuCtxSynchronize())
"""

BEGINNINGS = {
    "v1": "check(cuda.cuStreamBeginCapture(stream))",
    "v2": "check(cuda.cuStreamBeginCapture_v2(stream, 2))",
    "to graph": "check(cuda.cuStreamBeginCaptureToGraph("
    "stream, made(cuda.cuGraphCreate, 0), None, None, c_size_t(0), 2))",
    "looked up": """
address = c_void_p()
check(cuda.cuGetProcAddress(b"cuStreamBeginCapture", byref(address), 12000, c_uint64(0)))
check(ctypes.CFUNCTYPE(c_int, c_void_p, c_int)(address.value)(stream, 2))
""",
}


def left_when_quiet(proxied: Proxied, gate: Gate, program: str) -> str:
    """What the program says when its process is quiet: whether everything has ended."""
    with proxied.start(START + program) as process:
        assert read(process) == "captures"
        gate.set(CLOSED)
        gate.wait_for_quiet()
        output = ask(process, "")
        process.communicate(timeout=60)
    return output


@pytest.mark.parametrize("state", [OPEN, FREE])
@pytest.mark.parametrize("how", BEGINNINGS)
def test_what_runs_in_a_stream_that_begins_to_capture_is_waited_for(
    proxied: Proxied, gate: Gate, how: str, state: int
) -> None:
    """However the capture begins, and though nobody counted what was launched under a free gate."""
    gate.set(state)
    program = f"""
check(kernels.launch(200000, stream))
{BEGINNINGS[how]}
show("captures")
sys.stdin.readline()
ended(stream)
show(done(stream))
"""
    assert left_when_quiet(proxied, gate, program) == "True"


@pytest.mark.parametrize("begin", ["cuStreamBeginCapture_ptsz", "cuStreamBeginCapture_v2_ptsz"])
def test_what_runs_in_a_threads_default_stream_that_captures_is_waited_for(
    proxied: Proxied, gate: Gate, begin: str
) -> None:
    program = f"""
check(kernels.launch(200000, None, "cuLaunchKernel_ptsz"))
check(cuda.{begin}(None, *[2][:"v2" in "{begin}"]))
show("captures")
sys.stdin.readline()
ended(None, "_ptsz")
show(done(c_void_p(2)))
"""
    assert left_when_quiet(proxied, gate, program) == "True"


@pytest.mark.parametrize("wait", ["cuStreamWaitEvent", "cuStreamWaitEvent_ptsz"])
@pytest.mark.parametrize("state", [OPEN, FREE])
def test_what_runs_in_a_stream_that_joins_a_capture_is_waited_for(
    proxied: Proxied, gate: Gate, wait: str, state: int
) -> None:
    gate.set(state)
    program = f"""
event, joined = made(cuda.cuEventCreate, 2), made(cuda.cuEventCreate, 2)
check(cuda.cuStreamBeginCapture_v2(stream, 2))
check(kernels.launch(200000, other))
check(cuda.cuEventRecord(event, stream))
check(cuda.{wait}(other, event, 0))
check(cuda.cuEventRecord(joined, other))
check(cuda.cuStreamWaitEvent(stream, joined, 0))
show("captures")
sys.stdin.readline()
ended(stream)
show(done(other))
"""
    assert left_when_quiet(proxied, gate, program) == "True"


def test_what_runs_in_the_legacy_stream_is_waited_for_while_another_captures(
    proxied: Proxied, gate: Gate
) -> None:
    """No marker can be put into it then."""
    program = """
check(kernels.launch(200000))
check(cuda.cuStreamBeginCapture_v2(blocking, 2))
show("captures")
sys.stdin.readline()
ended(blocking)
show(done())
"""
    assert left_when_quiet(proxied, gate, program) == "True"


def test_what_is_behind_a_host_function_in_a_stream_that_captures_is_waited_for_later(
    proxied: Proxied, gate: Gate
) -> None:
    """Nobody waits while the host function runs, but for what runs when it has returned."""
    program = """
import threading
go, calls = threading.Event(), threading.Event()
def hold(_):
    calls.set()
    go.wait()
function = ctypes.CFUNCTYPE(None, c_void_p)(hold)
check(cuda.cuLaunchHostFunc(stream, function, None))
check(kernels.launch(200000, stream))
calls.wait()
show("held")
sys.stdin.readline()
check(cuda.cuStreamBeginCapture_v2(stream, 2))
show("captures")
sys.stdin.readline()
go.set()
show("goes on")
sys.stdin.readline()
ended(stream)
show(done(stream))
"""
    with proxied.start(START + program) as process:
        assert read(process) == "held"
        gate.set(PRESSED)
        gate.wait(lambda: gate.work.idle)  # the stream is stalled
        assert ask(process, "") == "captures"
        gate.set(CLOSED)
        gate.wait_for_quiet()
        assert ask(process, "") == "goes on"
        gate.wait(lambda: gate.work.active)
        gate.wait_for_quiet()
        assert ask(process, "") == "True"
        process.communicate(timeout=60)


def test_what_a_stream_captured_is_no_work_after_its_capture(proxied: Proxied, gate: Gate) -> None:
    """Neither in the stream that began, nor in one that joined."""
    program = """
event, joined = made(cuda.cuEventCreate, 2), made(cuda.cuEventCreate, 2)
for each in (stream, other) * 3:
    check(kernels.launch(20, each))
    check(cuda.cuStreamSynchronize(each))
check(cuda.cuStreamBeginCapture_v2(stream, 2))
check(kernels.launch(20, stream))
check(cuda.cuEventRecord(event, stream))
check(cuda.cuStreamWaitEvent(other, event, 0))
check(kernels.launch(20, other))
check(cuda.cuEventRecord(joined, other))
check(cuda.cuStreamWaitEvent(stream, joined, 0))
show(node_count(ended(stream)))
sys.stdin.readline()
"""
    with proxied.start(START + program) as process:
        assert read(process) == "2"
        before = gate.work.markers
        gate.set(PRESSED)
        gate.wait(lambda: gate.work.idle)
        assert gate.work.markers == before
        tell(process, "")
        process.communicate(timeout=60)


@pytest.mark.parametrize("which", ["stream", "other"])
def test_what_is_launched_after_a_capture_is_waited_for(
    proxied: Proxied, gate: Gate, which: str
) -> None:
    """In the stream that began, and in one that joined, though its end is nobody's call."""
    program = f"""
event, joined = made(cuda.cuEventCreate, 2), made(cuda.cuEventCreate, 2)
check(cuda.cuStreamBeginCapture_v2(stream, 2))
check(cuda.cuEventRecord(event, stream))
check(cuda.cuStreamWaitEvent(other, event, 0))
check(kernels.launch(20, other))
check(cuda.cuEventRecord(joined, other))
check(cuda.cuStreamWaitEvent(stream, joined, 0))
ended(stream)
check(kernels.launch(200000, {which}))
show("captures")
sys.stdin.readline()
show(done({which}))
"""
    assert left_when_quiet(proxied, gate, program) == "True"


def test_a_wait_for_an_event_marks_nothing_when_the_last_capture_has_ended(
    proxied: Proxied, gate: Gate
) -> None:
    """Also if nothing was launched since, and if the stream that captured was destroyed."""
    program = """
event = made(cuda.cuEventCreate, 2)
for _ in range(3):
    check(kernels.launch(20, other))
    check(cuda.cuStreamSynchronize(other))
show("warm")
sys.stdin.readline()
for n in range(50):
    gone = made(cuda.cuStreamCreate, NON_BLOCKING)
    for each in (stream, gone):
        check(cuda.cuStreamBeginCapture_v2(each, 2))
    ended(stream)
    check(cuda.cuStreamDestroy_v2(gone))
    check(kernels.launch(20, other))
    check(cuda.cuStreamWaitEvent(other, event, 0))
    check(cuda.cuStreamSynchronize(other))
show("done")
sys.stdin.readline()
"""
    with proxied.start(START + program) as process:
        assert read(process) == "warm"
        before = gate.work.markers
        assert ask(process, "") == "done"
        assert gate.work.markers == before
        tell(process, "")
        process.communicate(timeout=60)


def test_a_stream_that_was_synchronised_gets_no_marker_as_it_captures(
    proxied: Proxied, gate: Gate
) -> None:
    """Nor what waits for an event while no capture is under way."""
    program = """
event = made(cuda.cuEventCreate, 2)
for n in range(3):
    check(kernels.launch(20, stream))
    check(cuda.cuStreamSynchronize(stream))
show("warm")
sys.stdin.readline()
for n in range(50):
    check(cuda.cuStreamBeginCapture_v2(stream, 2))
    check(kernels.launch(20, stream))
    ended(stream)
    check(kernels.launch(20, stream))
    check(cuda.cuStreamWaitEvent(stream, event, 0))
    check(cuda.cuStreamSynchronize(stream))
show("done")
sys.stdin.readline()
"""
    with proxied.start(START + program) as process:
        assert read(process) == "warm"
        before = gate.work.markers
        assert ask(process, "") == "done"
        assert gate.work.markers == before
        tell(process, "")
        process.communicate(timeout=60)
