"""Work that waits for the program, or that never ends, is stalled behind the gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab.driver.sim_cuda import ask, read, tell
from lab.shares.gate_world import CLOSED, FREE, OPEN, PRESSED, Gate

if TYPE_CHECKING:
    from lab.driver.cuda_proxied import Proxied

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]  # what fails here, hangs

SECOND = 1_000_000_000  # for so long all work is waited for
MARKERS = 1024 + 512 + 256  # that a process may have in flight on a GPU
START = (
    "from lab.calls.gate_calls import *\nimport threading, time\n"
    "current = context(); kernels = Kernels()\n"
)
# A kernel that never ends, in its own stream; each line read launches kernels into another one.
STAYS = """
word = c_uint32()
resident, other = (made(cuda.cuStreamCreate, NON_BLOCKING) for _ in range(2))
for us in (20, 20000):
    check(kernels.launch(us, other)); check(cuda.cuStreamSynchronize(other))
kernels.stay(word, resident)
show("stays")
for line in sys.stdin:
    if line == "end\\n":
        word.value = 1
        show(cuda.cuStreamSynchronize(resident))
    elif line == "query\\n":
        show(done(resident), done(other))
    else:
        for _ in range(int(line)):
            check(kernels.launch(20, other))
        show("launched")
"""


def lines(program: str) -> str:
    """The text without a test's indentation."""
    return "\n".join(line.removeprefix("    ") for line in program.splitlines())


@pytest.mark.parametrize("state", [OPEN, FREE])
def test_a_kernel_that_stays_is_not_waited_for_when_the_gate_closes(
    proxied: Proxied, gate: Gate, state: int
) -> None:
    """Also one that was launched under a free gate; the work of other streams is."""
    gate.set(state)
    with proxied.start(START + STAYS) as process:
        assert read(process) == "stays"
        for _ in range(3):
            assert ask(process, "5000") == "launched"
            gate.set(CLOSED)
            gate.wait_for_quiet()
            assert ask(process, "query") == "False True"
            gate.set(OPEN)
        before = gate.work.markers
        assert ask(process, "5000") == "launched"
        assert gate.work.markers - before > 20  # the other stream is followed as ever
        assert ask(process, "end") == "0"
        gate.set(CLOSED)
        gate.wait_for_quiet()
        process.communicate(timeout=60)


def test_what_is_behind_a_kernel_that_stayed_is_work_when_that_ends(
    proxied: Proxied, gate: Gate
) -> None:
    """The gate is closed by then, so the arbiter must learn of it.

    A second in which nothing ends would be a stay of its own: the last two, which have one marker,
    take much less.
    """
    program = """
    word = c_uint32()
    stream = made(cuda.cuStreamCreate, NON_BLOCKING)
    check(kernels.launch(200000, stream)); check(cuda.cuStreamSynchronize(stream))
    kernels.stay(word, stream)
    for _ in range(3):
        check(kernels.launch(200000, stream))
    show("launched")
    sys.stdin.readline()
    word.value = 1
    sys.stdin.readline()
    show(done(stream))
    """
    with proxied.start(START + lines(program)) as process:
        assert read(process) == "launched"
        gate.set(CLOSED)
        gate.wait_for_quiet()
        tell(process, "")
        gate.wait(lambda: gate.work.active != 0)
        gate.wait_for_quiet()
        assert ask(process, "") == "True"
        process.communicate(timeout=60)


# The host function wants a lock that the launching thread holds, such as the interpreter's.
LOCKED = """
stream = made(cuda.cuStreamCreate, NON_BLOCKING)
lock = threading.Lock()
@ctypes.CFUNCTYPE(None, c_void_p)
def function(_):
    with lock:
        pass
@ctypes.CFUNCTYPE(None, c_void_p, c_int, c_void_p)
def callback(*_):
    function(None)
def call(how):
    if how == "function":
        check(cuda.cuLaunchHostFunc(stream, function, None))
    elif how == "callback":
        check(cuda.cuStreamAddCallback(stream, callback, None, 0))
"""


@pytest.mark.parametrize("how", ["function", "callback"])
def test_a_host_function_that_wants_a_lock_keeps_nobody_from_their_turn(
    proxied: Proxied, gate: Gate, how: str
) -> None:
    """Its thread waits at the closed gate and holds the lock: nothing runs; the arbiter sees it."""
    program = """
    check(kernels.launch(20, stream)); check(cuda.cuStreamSynchronize(stream))
    show("ready")
    sys.stdin.readline()
    with lock:
        for _ in range(3):
            check(kernels.launch(20, stream))
            call(sys.argv[1])
        check(kernels.launch(20, stream))
        show("holds")
        sys.stdin.readline()
        check(kernels.launch(20, stream))
    show(cuda.cuStreamSynchronize(stream))
    sys.stdin.readline()  # who has ended says nothing more
    """
    with proxied.start(START + LOCKED + lines(program), how) as process:
        assert read(process) == "ready"
        assert ask(process, "") == "holds"
        for state in (OPEN, PRESSED):
            gate.set(CLOSED)
            gate.wait_for_quiet()
            gate.set(state)
        gate.set(CLOSED)
        tell(process, "")
        gate.wait_for_waiting()
        gate.wait_for_quiet()
        gate.set(OPEN)
        assert read(process) == "0"
        gate.set(CLOSED)
        gate.wait_for_quiet()
        process.communicate(timeout=60)


@pytest.mark.parametrize("how", ["function", "callback"])
@pytest.mark.usefixtures("gate")
def test_launching_with_a_lock_that_a_host_function_wants_costs_little(
    proxied: Proxied, how: str
) -> None:
    """The same rounds with the lock and without, in one run. The lock made them 25 times longer."""
    program = """
    check(kernels.launch(20, stream)); check(cuda.cuStreamSynchronize(stream))
    def rounds(held):
        begun = time.monotonic()
        for _ in range(40):
            with (held if held else threading.Lock()):
                for _ in range(4):
                    for _ in range(20):
                        check(kernels.launch(20, stream))
                    call(sys.argv[1])
            check(cuda.cuStreamSynchronize(stream))
        return time.monotonic() - begun
    rounds(None)
    free, held = rounds(None), rounds(lock)
    show(held < 5 * free, free, held)
    """
    out = proxied.check(START + LOCKED + lines(program), how).out
    assert out[0].startswith("True"), out


def test_what_is_behind_a_host_function_is_work_when_that_returns(
    proxied: Proxied, gate: Gate
) -> None:
    program = """
    go = threading.Event()
    function = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: go.wait())
    stream = made(cuda.cuStreamCreate, NON_BLOCKING)
    check(cuda.cuLaunchHostFunc(stream, function, None))
    check(kernels.launch(200000, stream))
    check(kernels.launch(200000, stream))
    show("launched")
    sys.stdin.readline()
    go.set()
    sys.stdin.readline()
    show(done(stream))
    """
    with proxied.start(START + lines(program)) as process:
        assert read(process) == "launched"
        gate.set(CLOSED)
        gate.wait_for_quiet()
        tell(process, "")
        gate.wait(lambda: gate.work.active != 0)
        gate.wait_for_quiet()
        assert ask(process, "") == "True"
        process.communicate(timeout=60)


def test_markers_that_are_never_written_cost_a_program_next_to_nothing(
    proxied: Proxied, gate: Gate
) -> None:
    """Beside an idle neighbour each launch waited seconds for them."""
    program = """
    streams = [made(cuda.cuStreamCreate, NON_BLOCKING) for _ in range(3)]
    for _ in range(5):
        for stream in streams:
            check(kernels.launch(20000, stream))
    check(cuda.cuCtxSynchronize())
    begun = time.monotonic()
    for _ in range(30):
        for stream in streams:
            check(kernels.launch(20, stream))
            check(kernels.launch(20, stream))
    show(time.monotonic() - begun < 5)
    """
    assert gate.word != 0
    assert proxied.check(START + lines(program), CGPU_SIM_LOSE_VALUES="1000000").out == ["True"]


def test_a_stream_that_waits_for_one_in_a_host_function_delays_nobody_for_long(
    proxied: Proxied, gate: Gate
) -> None:
    """It waits by an event, or for the driver's only thread of host functions."""
    program = """
    other = made(cuda.cuStreamCreate, NON_BLOCKING)
    event = made(cuda.cuEventCreate, 2)
    check(kernels.launch(20, stream)); check(kernels.launch(20, other))
    check(cuda.cuCtxSynchronize())
    begun = time.monotonic()
    for number in range(10):
        with lock:
            call("function")
            if number % 2:
                check(cuda.cuEventRecord(event, stream))
                check(cuda.cuStreamWaitEvent(other, event, 0))
            else:
                check(cuda.cuLaunchHostFunc(other, function, None))
            for _ in range(100):
                check(kernels.launch(20, other))
        check(cuda.cuCtxSynchronize())
    show(time.monotonic() - begun < 5)
    """
    assert gate.word != 0
    assert proxied.check(START + LOCKED + lines(program)).out == ["True"]


def test_the_probe_of_a_quiet_turn_asks_for_no_marker_where_all_are_taken(
    proxied: Proxied, gate: Gate
) -> None:
    """It took one more than there are, and the launch behind it never returned."""
    program = """
    clean, stream = (made(cuda.cuStreamCreate, NON_BLOCKING) for _ in range(2))
    for _ in range(100):
        check(kernels.launch(200000, stream))
    for _ in range(int(sys.argv[1]) - 1): # each capture takes a marker, the gate that closes one
        check(cuda.cuStreamBeginCapture_v2(stream, 2))
        check(cuda.cuStreamEndCapture(stream, ctypes.byref(c_void_p())))
    show("stuck")
    sys.stdin.readline()
    check(kernels.launch(20, clean))
    show("launched")
    os._exit(0)
    """
    gate.set(FREE)
    with proxied.start(START + lines(program), str(MARKERS)) as process:
        assert read(process) == "stuck"
        gate.set(CLOSED)
        gate.wait_for_quiet()
        assert gate.work.markers >= MARKERS
        gate.limits.quiet_gate = (gate.word // 8 + 1) * 8 + OPEN  # the turn that comes
        gate.set(OPEN)
        assert ask(process, "") == "launched"
        process.communicate(timeout=60)
