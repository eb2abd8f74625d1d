"""Streams that wait for the program: all ways to make one wait, behind the gate."""

from __future__ import annotations

import time
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from lab.driver.sim_cuda import ask, read
from lab.shares.gate_world import CLOSED, OPEN, PRESSED, Gate

if TYPE_CHECKING:
    from lab.driver.cuda_proxied import Proxied

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]  # what fails here, hangs

SECOND = 1_000_000_000  # for so long all work is waited for

# ``wait(how)`` submits something to the stream that ends when ``signal()`` is called.
WAITS = """
from lab.calls.gate_calls import *
import mmap, struct, threading, time
from ctypes import create_string_buffer
current = context(); kernels = Kernels()
stream = made(cuda.cuStreamCreate, NON_BLOCKING)
fd = os.memfd_create("timeline")
os.ftruncate(fd, 4096)
page = mmap.mmap(fd, 4096)
word = c_uint64.from_buffer(page)
check(cuda.cuMemHostRegister_v2(c_void_p(ctypes.addressof(word)), c_size_t(4096), 0))
description = create_string_buffer(struct.pack("<i4xi12xI64x4x", 9, os.dup(fd), 0))
semaphores = (c_void_p * 1)(made(cuda.cuImportExternalSemaphore, description))
values = create_string_buffer(struct.pack("<Q136x", 1))
go = threading.Event()
function = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: go.wait())
awaits = struct.pack("<QQI4x", ctypes.addressof(semaphores), ctypes.addressof(values), 1)
calls = struct.pack("<QQ", ctypes.cast(function, c_void_p).value, 0)
def launch(add, edges, node):
    graph = made(cuda.cuGraphCreate, 0)
    made(add, graph, None, *edges, c_size_t(0), node)
    exec = made(cuda.cuGraphInstantiateWithFlags, graph, c_uint64(0))
    check(cuda.cuGraphLaunch(exec, stream))
def signal():
    word.value = 1
    go.set()
def wait(how):
    word.value = 0
    go.clear()
    if how == "function":
        check(cuda.cuLaunchHostFunc(stream, function, None))
    elif how == "value":
        check(cuda.cuStreamWaitValue32_v2(stream, c_uint64(ctypes.addressof(word)), 1, 0))
    elif how == "kernel":
        kernels.stay(word, stream)
    elif how == "semaphore":
        check(cuda.cuWaitExternalSemaphoresAsync(semaphores, values, 1, stream))
    elif how == "graph":
        launch(cuda.cuGraphAddExternalSemaphoresWaitNode, (), awaits)
    elif how == "newer":  # of a type that nobody knows, and what it may do
        node = create_string_buffer(struct.pack("<I", 14), 256)
        cuda.cuGraphAddNode(byref(c_void_p()), made(cuda.cuGraphCreate, 0), None, c_size_t(0), node)
        check(driver().cuStreamWaitValue32_v2(stream, c_uint64(ctypes.addressof(word)), 1, 0))
    else:
        call, kind = how.split()
        node = struct.pack("<I12x232s8x", *{"host": (3, calls), "semaphore": (9, awaits)}[kind])
        edges = () if call == "cuGraphAddNode" else (None,)
        launch(getattr(cuda, call), edges, create_string_buffer(node))
"""


def test_a_long_kernel_is_waited_for_also_where_streams_may_wait_for_the_program(
    proxied: Proxied, gate: Gate
) -> None:
    """One value wait, over at once, let every kernel of more than 100 ms pass uncharged."""
    program = """
    check(kernels.launch(20, stream)); check(cuda.cuStreamSynchronize(stream))
    word.value = 1
    check(cuda.cuStreamWaitValue32_v2(stream, c_uint64(ctypes.addressof(word)), 1, 0))
    check(kernels.launch(200000, stream))
    show("launched")
    sys.stdin.readline()
    show(done(stream))
    """
    with proxied.start(WAITS + dedent(program)) as process:
        assert read(process) == "launched"
        gate.set(CLOSED)
        gate.wait_for_quiet()
        assert ask(process, "") == "True"
        process.communicate(timeout=60)


@pytest.mark.parametrize(("waits", "shown"), [(False, 1), (True, 0)], ids=["kernel", "value"])
def test_the_time_that_a_kernel_was_not_waited_for_is_told_when_it_ends(
    proxied: Proxied, gate: Gate, *, waits: bool, shown: int
) -> None:
    """A stream that waits for a value uses none of the GPU: that is no kernel's time."""
    program = """
    check(kernels.launch(20, stream)); check(cuda.cuStreamSynchronize(stream))
    begun = time.monotonic_ns()
    wait(sys.argv[1])
    check(kernels.launch(20, stream))
    show("launched")
    sys.stdin.readline()
    signal()
    show(cuda.cuStreamSynchronize(stream), begun)
    """
    how = "value" if waits else "kernel"
    with proxied.start(WAITS + dedent(program), how) as process:
        assert read(process) == "launched"
        gate.set(CLOSED)
        gate.wait_for_quiet()
        assert gate.stalls == (shown, 0)
        time.sleep(0.1)
        status, begun = ask(process, "").split()
        assert status == "0"
        times, stayed = gate.stalls
        assert times == shown
        assert stayed <= time.monotonic_ns() - int(begun) - SECOND
        assert (stayed > 50_000_000) == bool(shown)
        process.communicate(timeout=60)


# The driver's queue holds 1,023: the wait, the launches, and the markers that may be placed before
# it is known that the stream waits. A host function is known at once.
BEHIND = 3
CLOSINGS = 15
UNSEEN = ("value", "kernel", "semaphore", "graph")
MOST = dict.fromkeys(UNSEEN, 1022 - BEHIND) | {"function": 1022}


@pytest.mark.parametrize("how", MOST)
@pytest.mark.parametrize("count", [400, 768, None])
@pytest.mark.usefixtures("gate")
def test_a_program_may_launch_what_the_drivers_queue_holds_before_it_signals(
    proxied: Proxied, how: str, count: int | None
) -> None:
    """Beside a neighbour as without one, though markers take some of the queue."""
    count = MOST[how] if count is None else count
    program = """
    check(kernels.launch(20, stream)); check(cuda.cuStreamSynchronize(stream))
    wait(sys.argv[1])
    for _ in range(int(sys.argv[2])):
        check(kernels.launch(20, stream))
    signal()
    show(cuda.cuStreamSynchronize(stream))
    """
    assert proxied.check(WAITS + dedent(program), how, str(count)).out == ["0"]


# Launches as many kernels as each line read says, ``other`` of them into a stream of its own. The
# kernel that waits is known to be short: nobody sleeps until it has ended.
ROUNDS = """
other = made(cuda.cuStreamCreate, NON_BLOCKING)
check(kernels.launch(20, stream)); check(kernels.launch(20, other))
for _ in range(3):
    wait(sys.argv[1]); signal(); check(cuda.cuStreamSynchronize(stream))
check(cuda.cuCtxSynchronize())
show("ready")
sys.stdin.readline()
wait(sys.argv[1])
show("waits")
for line in sys.stdin:
    count, others, pause = line.split()
    for _ in range(int(count)):
        check(kernels.launch(20, stream))
        time.sleep(float(pause))
    for _ in range(int(others)):
        check(kernels.launch(20, other))
    show("launched")
signal()
show(cuda.cuCtxSynchronize())
"""


@pytest.mark.parametrize("how", UNSEEN)
@pytest.mark.parametrize("state", [OPEN, PRESSED])
def test_a_thread_that_launches_slowly_has_as_few_markers_behind_a_wait(
    proxied: Proxied, gate: Gate, how: str, state: int
) -> None:
    """As on a machine that is busy: while others wait, each pause took a place in the queue."""
    with proxied.start(WAITS + ROUNDS, how) as process:
        assert read(process) == "ready"
        gate.set(state)
        before = gate.work.markers
        assert ask(process, "") == "waits"
        assert ask(process, "25 0 0.001") == "launched"
        assert ask(process, f"{MOST[how] - 25} 0 0") == "launched"
        assert gate.work.markers - before <= BEHIND
        assert process.communicate(timeout=60)[0] == "0\n"


@pytest.mark.parametrize("how", UNSEEN)
def test_a_gate_that_closes_often_puts_no_more_markers_behind_a_wait(
    proxied: Proxied, gate: Gate, how: str
) -> None:
    """Each time it closes, the work of another stream gets a marker."""
    with proxied.start(WAITS + ROUNDS, how) as process:
        assert read(process) == "ready"
        before = gate.work.markers
        assert ask(process, "") == "waits"
        for _ in range(CLOSINGS):
            assert ask(process, "1 1 0") == "launched"
            placed = gate.work.markers
            gate.set(CLOSED)
            gate.wait(lambda placed=placed: gate.work.markers > placed)
            gate.set(OPEN)
        assert gate.work.markers - before <= CLOSINGS + BEHIND
        assert ask(process, f"{MOST[how] - CLOSINGS} 0 0") == "launched"
        assert process.communicate(timeout=60)[0] == "0\n"


@pytest.mark.parametrize("state", [OPEN, PRESSED, CLOSED])
def test_no_marker_follows_a_host_function_that_has_yet_to_begin(
    proxied: Proxied, gate: Gate, state: int
) -> None:
    """The driver's only thread of host functions is late; markers would fill the driver's queue."""
    program = """
    other = made(cuda.cuStreamCreate, NON_BLOCKING)
    check(kernels.launch(20, stream)); check(cuda.cuStreamSynchronize(stream))
    show("ready")
    sys.stdin.readline()
    last = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: time.sleep(0.05))
    check(cuda.cuLaunchHostFunc(other, last, None))
    check(cuda.cuLaunchHostFunc(stream, function, None))
    check(kernels.launch(20, stream))
    show("launched")
    for _ in range(int(sys.argv[1])):
        check(kernels.launch(20, stream))
    show("more")
    sys.stdin.readline()
    go.set()
    show(cuda.cuStreamSynchronize(stream))
    """
    more = 0 if state == CLOSED else 100
    with proxied.start(WAITS + dedent(program), str(more)) as process:
        assert read(process) == "ready"
        before = gate.work.markers
        assert ask(process, "") == "launched"
        gate.set(state)
        assert read(process) == "more"
        if state == CLOSED:
            gate.wait_for_quiet()
        assert gate.work.markers == before
        gate.set(OPEN)
        assert ask(process, "") == "0"
        process.communicate(timeout=60)


NODES = [
    f"cuGraphAddNode{version} {kind}"
    for version in ("", "_v2", "_v3")
    for kind in ("host", "semaphore")
]


@pytest.mark.parametrize("how", ["value", "semaphore", "graph", "newer", *NODES])
def test_a_wait_in_a_stream_delays_its_thread_less_than_a_kernel_of_unknown_length(
    proxied: Proxied, gate: Gate, how: str
) -> None:
    """While nobody knew that the stream may wait for the program, each launch waited seconds."""
    program = """
    check(kernels.launch(20, stream)); check(cuda.cuStreamSynchronize(stream))
    begun = time.monotonic()
    for _ in range(10):
        wait(sys.argv[1])
        for _ in range(100):
            check(kernels.launch(20, stream))
        signal()
        check(cuda.cuStreamSynchronize(stream))
    show(time.monotonic() - begun < 5)
    """
    assert gate.word != 0
    assert proxied.check(WAITS + dedent(program), how).out == ["True"]
