"""What a launch asks of the driver, the C library and the kernel: nothing, but once per batch."""

from __future__ import annotations

import select
import sys
import time
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from lab.driver.cuda_base import PROGRAMS, STUB_CAP, compile_c, lay_out, stub_gpus
from lab.driver.sim_cuda import read, tell
from lab.shares.gate_world import CLOSED, FREE, OPEN, PRESSED, Gate

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from lab.driver.cuda_base import Base

pytestmark = pytest.mark.integration

LAUNCHES = 400_000

# In a context and stream of each GPU that is named, then in the last of these.
COUNT = """
from lab.calls.gate_calls import *
for gpu in sys.argv[1:]:
    context(int(gpu))
    made(cuda.cuStreamCreate, 1)
folder = os.path.dirname(os.environ["CGPU_PROXY"])
driver = ctypes.CDLL(os.path.join(folder, "../real/libcuda.so.1"))
counter = ctypes.CDLL(None).count_launches
recalled = ctypes.CDLL(None).count_recalled
counter.restype = recalled.restype = c_uint64
address = lambda function: ctypes.cast(function, c_void_p)
one, two, three = (made(cuda.cuStreamCreate, 1) for _ in range(3))
def count(launches, *streams):
    return counter(address(cuda.cuLaunchKernel), address(driver.stub_calls), c_void_p(4096),
                   (c_void_p * len(streams))(*streams), c_uint64(len(streams)), c_uint64(launches))
count(100, None, one, two, three)
"""
PROGRAM = (
    COUNT
    + """
for line in sys.stdin:
    launches = int(line)
    show(*[each for by_turns in ((None,), (one,), (None, one), (None, one, two, three))
           for each in (count(launches, *by_turns), recalled())])
"""
)

MANY = (
    COUNT
    + """
many = [made(cuda.cuStreamCreate, 1) for _ in range(16)]
count(100, *many)
show(count(int(sys.stdin.readline()), *many))
sys.stdin.readline()
"""
)


@pytest.fixture
def preload(tmp_path: Path) -> str:
    flags = ("-shared", "-fPIC", "-ldl")
    return str(
        compile_c(PROGRAMS / "preloaded" / "gate_counts.c", tmp_path / "gate_counts.so", *flags)
    )


@pytest.mark.parametrize("state", [OPEN, PRESSED])
def test_a_contended_launch_makes_no_call_but_once_per_batch(
    base: Base, preload: str, state: int
) -> None:
    """No lock, system call, clock or driver call, in one stream or up to four by turns.

    While others wait, threads ask a few times per batch if there are several batches at a time.
    Also, after the monitor has taken the thread to be idle, its next launch into each
    stream may make calls.
    """
    with (
        Gate(base.path, state=state) as gate,
        base.start(PROGRAM, "0", LD_PRELOAD=preload) as process,
    ):
        gate.wait(gate.works)
        before = gate.work.markers
        tell(process, str(LAUNCHES))
        counted = list(map(int, read(process).split()))
        placed = gate.work.markers - before
        process.communicate(timeout=60)
    busy, recalled = sum(counted[::2]), sum(counted[1::2])
    assert 0 < busy < LAUNCHES // 50  # batches are shorter on a busy machine
    assert busy - recalled <= (4 if state == PRESSED else 1) * placed + 10


@pytest.mark.parametrize("gpus", [["0"], ["1", "0"]])
def test_sch_5_a_launch_under_a_free_gate_makes_no_call_at_all(
    base: Base, preload: str, gpus: list[str]
) -> None:
    """SCH-5, and the lone container: whatever stream, once the thread is let in."""
    with (
        Gate(base.path, state=FREE) as gate,
        base.start(PROGRAM, *gpus, LD_PRELOAD=preload) as process,
    ):
        gate.wait(gate.works)
        tell(process, str(LAUNCHES))
        assert set(read(process).split()) == {"0"}
        assert gate.work.markers == 0
        process.communicate(timeout=60)


def test_sch_5_nor_does_a_launch_into_16_streams_by_turns(base: Base, preload: str) -> None:
    """More than a thread remembers, in a process with one GPU."""
    with (
        Gate(base.path, state=FREE) as gate,
        base.start(MANY, "0", LD_PRELOAD=preload) as process,
    ):
        tell(process, str(LAUNCHES))
        assert read(process) == "0"
        assert gate.work.markers == 0
        process.communicate(timeout=60)


def test_kernels_that_are_launched_once_share_markers(base: Base) -> None:
    """Each was a batch of its own."""
    program = """
    from lab.calls.gate_calls import *
    context()
    for n in range(8000):
        check(cuda.cuLaunchKernel(c_void_p(4096 * n), 1, 1, 1, 32, 1, 1, 0, None, None, None))
    show("launched")
    sys.stdin.readline()
    """
    with Gate(base.path, state=PRESSED) as gate, base.start(program) as process:
        assert read(process) == "launched"
        assert gate.work.markers < 1000
        process.communicate(timeout=60)


def test_nobody_sleeps_for_a_marker_that_is_passed_at_once(base: Base) -> None:
    """On an idle GPU: kernels that were never seen are a batch each."""
    program = """
    from lab.calls.gate_calls import *
    context()
    def switches():
        status = open("/proc/thread-self/status").read()
        return int(status.partition("\\nvoluntary_ctxt_switches:")[2].split()[0])
    def launch(n):
        check(cuda.cuLaunchKernel(c_void_p(4096 * n), 1, 1, 1, 32, 1, 1, 0, None, None, None))
    launch(1); launch(2)
    before = switches()
    for n in range(1000):
        launch(n)
    show(switches() - before)
    """
    with Gate(base.path, state=PRESSED):
        assert int(base.check(program).out[0]) < 100


def test_a_driver_that_writes_no_values_is_asked_by_events(base: Base) -> None:
    program = """
    from lab.calls.gate_calls import *
    context()
    for n in range(1000):
        kernel = c_void_p(4096 + n // 4 * 4096)
        check(cuda.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, None, None, None))
    show("launched")
    sys.stdin.readline()
    """
    with Gate(base.path, state=OPEN) as gate:
        with base.start(program, STUB_NO_WORDS="1") as process:
            assert read(process) == "launched"
            assert gate.work.markers >= 50
            gate.set(CLOSED)
            gate.wait_for_quiet()
            process.communicate(timeout=60)
        assert process.returncode == 0


def test_a_forked_child_that_starts_anew_has_work_of_its_own(base: Base) -> None:
    """And its own monitor: the parent's is not there."""
    program = """
    from lab.calls.gate_calls import *
    context()
    launch = lambda: cuda.cuLaunchKernel(c_void_p(4096), 1, 1, 1, 32, 1, 1, 0, None, None, None)
    check(launch())
    if os.fork() == 0:
        context()
        show(launch())
        sys.stdin.readline()
        show(launch())
        os._exit(0)
    os.wait()
    """
    with Gate(base.path, state=OPEN) as gate, base.start(program) as process:
        assert read(process) == "0"
        assert len(gate.works()) == 2
        gate.set(CLOSED)
        gate.wait_for_quiet()
        tell(process, "")
        gate.wait_for_waiting()
        gate.set(OPEN)
        assert read(process) == "0"
        process.communicate(timeout=60)


def test_a_process_for_which_there_is_no_room_launches_nothing(tmp_path: Path, stub: Path) -> None:
    """The table of work is full of living processes: NOT_PERMITTED and one line."""
    base = lay_out(tmp_path / "full", stub, stub_gpus(STUB_CAP))
    program = """
    from lab.calls.gate_calls import *
    context()
    print(cuda.cuLaunchKernel(c_void_p(4096), 1, 1, 1, 32, 1, 1, 0, None, None, None))
    """
    with Gate(base.path, state=OPEN) as gate:
        gate.fill_works()
        outcome = base.check(program)
    assert outcome.out == ["800"]
    assert outcome.log.startswith("cgpu: launches refused: ")


def test_a_process_without_memory_for_the_gate_gets_no_cuda(base: Base) -> None:
    """Its tables are address space of 45 MB, which a limit of the process may refuse."""
    program = """
    import cgpu_native, ctypes, resource
    pages = int(open("/proc/self/statm").read().split()[0])
    most = pages * resource.getpagesize() + (24 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    from lab.calls.cuda_calls import cuda
    print(cuda.cuInit(0))
    """
    anew = [sys.executable, "-c", dedent(program)]
    with Gate(base.path, state=OPEN):
        outcome = base.check(f"os.execv(sys.executable, {anew})")
    assert outcome.out == ["800"]
    assert outcome.log.startswith("cgpu: no CUDA in this process: no 45 MB of address space")


def test_green_contexts_that_come_and_go_leave_room_for_others(base: Base) -> None:
    """A green context's context has a handle of its own, and is destroyed with it."""
    program = """
    from lab.calls.gate_calls import *
    context()
    def status():
        green, stands = c_void_p(), c_void_p()
        check(cuda.cuGreenCtxCreate(byref(green), None, 0, 1))
        check(cuda.cuCtxFromGreenCtx(byref(stands), green))
        check(cuda.cuCtxSetCurrent(stands))
        stream = made(cuda.cuStreamCreate, 1)
        said = cuda.cuLaunchKernel(c_void_p(4096), 1, 1, 1, 32, 1, 1, 0, stream, None, None)
        check(cuda.cuStreamDestroy_v2(stream))
        check(cuda.cuGreenCtxDestroy(green))
        return said
    show(*sorted({status() for _ in range(200)}))
    """
    with Gate(base.path, state=OPEN):
        assert base.check(program).out == ["0"]


ROOM = 1 << 40  # for as many green contexts, each of which costs 6 MiB

# A context, a stream in it, and a launch into each of its streams: what is refused, if anything.
BEYOND = """
from lab.calls.gate_calls import *
greens = []
def beyond():
    green, stands, stream = c_void_p(), c_void_p(), c_void_p()
    check(cuda.cuGreenCtxCreate(byref(green), None, 0, 1))
    check(cuda.cuCtxFromGreenCtx(byref(stands), green))
    check(cuda.cuCtxSetCurrent(stands))
    greens.append(green)
    refused = cuda.cuStreamCreate(byref(stream), 1)
    launch = lambda into: cuda.cuLaunchKernel(c_void_p(4096), *[1] * 6, 0, into, None, None)
    return refused, *[launch(into) for into in [None, stream][: 1 if refused else 2]]
check(cuda.cuInit(0))
"""


@pytest.mark.parametrize("state", [OPEN, FREE])
def test_a_context_beyond_the_512_of_the_table_gets_no_stream_and_no_launch(
    base: Base, state: int
) -> None:
    """Not under a free gate either: nobody could tell when its work has ended."""
    program = (
        BEYOND
        + """
show(*{beyond() for _ in range(512)}, *{beyond() for _ in range(3)})
check(cuda.cuGreenCtxDestroy(greens[0]))
show(beyond())
"""
    )
    with Gate(base.path, state=state) as gate:
        gate.limits.cap_bytes = ROOM
        outcome = base.check(program)
    assert outcome.out == ["(0, 0, 0) (2, 800)", "(0, 0, 0)"]
    assert outcome.log.count("512 contexts") == outcome.log.count("\n") > 0


def test_a_launch_makes_no_call_after_there_were_more_contexts_than_the_table_holds(
    base: Base, preload: str
) -> None:
    """Under a free gate, once they are gone: into more streams than a thread remembers."""
    program = BEYOND + "[beyond() for _ in range(513)]\n"
    program += "[check(cuda.cuGreenCtxDestroy(green)) for green in greens]\n" + COUNT
    program += f"""
many = [made(cuda.cuStreamCreate, 1) for _ in range(8)]
show(count({LAUNCHES}, *many))
"""
    with Gate(base.path, state=FREE) as gate:
        gate.limits.cap_bytes = ROOM
        (busy,) = base.check(program, "0", LD_PRELOAD=preload).out
    assert int(busy) < LAUNCHES // 50


def answer(process: subprocess.Popen[str]) -> str:
    """The next line of a program that may hang."""
    if not select.select([process.stdout], [], [], 20)[0]:
        process.kill()
    return read(process)


@pytest.mark.parametrize("ahead", [0, 100_000, -10])
def test_the_arbiter_is_obeyed_in_a_time_namespace(base: Base, ahead: int) -> None:
    """Its clock has an offset; times that it exchanges with the arbiter are the host's."""
    program = """
    CLONE_NEWTIME = 0x80
    assert ctypes.CDLL(None).unshare(CLONE_NEWTIME) == 0
    with open("/proc/self/timens_offsets", "w") as offsets:
        offsets.write(f"monotonic {sys.argv[1]} 0\\n")
    if os.fork() != 0:
        os._exit(os.wait()[1] != 0)
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG
    from lab.calls.gate_calls import *
    context(0)
    context(1)
    for line in sys.stdin:
        show(cuda.cuLaunchKernel(c_void_p(4096), 1, 1, 1, 32, 1, 1, 0, None, None, None))
    """
    with Gate(base.path, 1, OPEN) as gate, base.start(program, str(ahead)) as process:
        for _ in range(3):
            tell(process, "")
            assert answer(process) == "0"
        gate.set(CLOSED)
        gate.wait_for_quiet()
        assert abs(time.monotonic_ns() - gate.work.end_ns) < 5_000_000_000
        tell(process, "")
        gate.wait_for_waiting()
        gate.set(OPEN)
        assert read(process) == "0"
        process.communicate(timeout=60)
