"""More threads that launch than there are lanes: these take the slow path, and nothing else."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from lab.driver.cuda_base import PROGRAMS, ROOT, compile_c
from lab.driver.sim_cuda import ask, read, tell
from lab.shares.gate_world import CLOSED, FREE, OPEN, PRESSED, Gate

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from lab.driver.cuda_base import Base
    from lab.driver.cuda_proxied import Proxied

pytestmark = pytest.mark.integration

SHARED = ("-shared", "-fPIC", "-ldl")
LANES = 2048  # threads, CGPU_MAX_LANES / CGPU_THREAD_LANES

# Threads that launch once each and then stay until the test ends them.
CROWD = f"""
from lab.calls.gate_calls import *
import threading
import time
threading.stack_size(1 << 18)
current = context()
class Crowd:
    def __init__(self, launch, count={LANES}):
        self._launch, self._go = launch, threading.Event()
        self._here = threading.Semaphore(0)
        self.statuses = set()
        self._threads = [threading.Thread(target=self._stay, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()
            self._here.acquire()
    def _stay(self):
        check(cuda.cuCtxSetCurrent(current))
        self.statuses.add(self._launch())
        self._here.release()
        self._go.wait()
    def leave(self):
        self._go.set()
        [thread.join() for thread in self._threads]
"""

# On the driver that does nothing.
STUB = (
    CROWD
    + """
folder = os.path.dirname(os.environ["CGPU_PROXY"])
driver = ctypes.CDLL(os.path.join(folder, "../real/libcuda.so.1"))
def launch(function=4096, stream=None):
    return cuda.cuLaunchKernel(c_void_p(function), 1, 1, 1, 32, 1, 1, 0, stream, None, None)
"""
)

SIMULATED = CROWD + "kernels = Kernels()\n"


@pytest.mark.parametrize("state", [OPEN, PRESSED, FREE])
def test_no_thread_is_refused_however_many_launch(base: Base, state: int) -> None:
    program = STUB + f"crowd = Crowd(launch, {LANES} + 300); show(*crowd.statuses)"
    with Gate(base.path, state=state):
        outcome = base.check(program)
    assert outcome.out == ["0"]
    assert outcome.log == ""


@pytest.mark.parametrize("into", ["own", "legacy", "per-thread"])
@pytest.mark.parametrize("state", [OPEN, FREE])
def test_work_of_a_thread_without_a_lane_is_waited_for(
    proxied: Proxied, gate: Gate, into: str, state: int
) -> None:
    """Also where only the thread itself can name the stream."""
    program = (
        SIMULATED
        + """
own = made(cuda.cuStreamCreate, NON_BLOCKING)
how = "cuLaunchKernel" + "_ptsz" * (sys.argv[1] == "per-thread")
event, stream = made(cuda.cuEventCreate, 0), own if sys.argv[1] == "own" else None
crowd = Crowd(lambda: kernels.launch(20))
check(cuda.cuCtxSynchronize())
check(kernels.launch(200000, stream, how))
check(cuda.cuEventRecord(event, c_void_p(2) if sys.argv[1] == "per-thread" else stream))
show("launched")
sys.stdin.readline()
show(cuda.cuEventQuery(event))
os._exit(0)
"""
    )
    gate.set(state)
    with proxied.start(program, into) as process:
        assert read(process) == "launched"
        gate.set(CLOSED)
        gate.wait_for_quiet()
        assert ask(process, "") == "0"
        process.communicate(timeout=60)


def test_work_of_a_thread_without_a_lane_is_waited_for_after_a_fallback(
    proxied: Proxied, gate: Gate
) -> None:
    """The server comes back with the gate word that was quiet before it stood still."""
    program = (
        SIMULATED
        + """
stream = made(cuda.cuStreamCreate, NON_BLOCKING)
crowd = Crowd(lambda: kernels.launch(20))
check(cuda.cuCtxSynchronize())
show("ready")
sys.stdin.readline()
check(kernels.launch(200000, stream))
show("launched")
sys.stdin.readline()
show(done(stream))
os._exit(0)
"""
    )
    with proxied.start(program) as process:
        assert read(process) == "ready"
        gate.limits.share_ppm = 1_000_000
        gate.set(CLOSED)
        gate.wait_for_quiet()
        gate.alive = False
        assert ask(process, "") == "launched"
        gate.alive = True
        time.sleep(0.035)  # the process sees the heartbeat
        gate.wait_for_quiet()
        assert ask(process, "") == "True"
        process.communicate(timeout=60)


def test_a_capture_elsewhere_lets_no_thread_without_a_lane_through_a_closed_gate(
    proxied: Proxied, gate: Gate
) -> None:
    """Its default stream is counted with the legacy one, which a capture makes unusable."""
    program = (
        SIMULATED
        + """
blocking = made(cuda.cuStreamCreate, 0)
crowd = Crowd(lambda: kernels.launch(20))
check(cuda.cuCtxSynchronize())
check(cuda.cuStreamBeginCapture_v2(blocking, 2))
show("captures")
sys.stdin.readline()
show(kernels.launch(20, None, "cuLaunchKernel_ptsz"))
os._exit(0)
"""
    )
    with proxied.start(program) as process:
        assert read(process) == "captures"
        gate.set(CLOSED)
        gate.wait_for_quiet()
        tell(process, "")
        gate.wait_for_waiting()
        gate.set(OPEN)
        assert read(process) == "0"
        process.communicate(timeout=60)


def test_a_thread_without_a_lane_waits_at_a_closed_gate_and_counts_what_it_launches(
    base: Base,
) -> None:
    """Work of each batch is marked, as that of any other thread."""
    program = STUB + (
        "crowd = Crowd(launch)\nfor line in sys.stdin:\n"
        "    show(*{launch(4096 * int(line)) for _ in range(2000)})\nos._exit(0)\n"
    )
    with Gate(base.path, state=OPEN) as gate, base.start(program) as process:
        gate.wait(gate.works)
        assert ask(process, "1") == "0"
        gate.set(CLOSED)
        gate.wait_for_quiet()
        tell(process, "2")
        gate.wait_for_waiting()
        before = gate.work.markers
        gate.set(OPEN)
        assert read(process) == "0"
        assert gate.work.markers > before
        gate.set(CLOSED)
        gate.wait_for_quiet()
        process.communicate(timeout=60)


HELD = 1 << 20

# A thread without a lane that stays in the driver, on its way into `stream`.
HOLDS = (
    STUB
    + f"""
def begin_held(way, what, call):
    driver.stub_hold(way, c_void_p(what))
    before = driver.stub_inside()
    thread = threading.Thread(target=lambda: (cuda.cuCtxSetCurrent(current), call()), daemon=True)
    thread.start()
    while driver.stub_inside() == before and thread.is_alive():
        time.sleep(0.001)
    if driver.stub_inside() == before:
        raise SystemExit("refused")
    return thread
def let_go(way, thread):
    driver.stub_hold(way, None)
    thread.join()
stream = made(cuda.cuStreamCreate, 1)
crowd = Crowd(launch)
show("ready")
sys.stdin.readline()
thread = begin_held(0, {HELD}, lambda: launch({HELD}, stream))
show("held")
sys.stdin.readline()
"""
)
ENDS = "sys.stdin.readline()\nos._exit(0)\n"


def calm(gate: Gate, process: subprocess.Popen[str], state: int = OPEN) -> None:
    """Let nothing be left to mark, then let the thread be held."""
    assert read(process) == "ready"
    gate.set(CLOSED)
    gate.wait_for_quiet()
    gate.set(state)
    assert ask(process, "") == "held"


@pytest.mark.parametrize("state", [OPEN, FREE])
def test_a_gate_closes_only_when_a_thread_without_a_lane_has_left_the_driver(
    base: Base, state: int
) -> None:
    program = HOLDS + "let_go(0, thread)\nshow('left')\n" + ENDS
    with Gate(base.path, state=state) as gate, base.start(program) as process:
        calm(gate, process, state)
        gate.set(CLOSED)
        time.sleep(0.3)
        assert gate.work.active != 0
        assert ask(process, "") == "left"
        gate.wait_for_quiet()
        process.communicate(timeout=60)


@pytest.mark.parametrize(
    "call", ["cuda.cuCtxSynchronize()", "cuda.cuStreamSynchronize(stream)",
             "cuda.cuStreamDestroy_v2(stream)"],
)  # fmt: skip
def test_a_launch_that_is_still_in_the_driver_is_marked_after_it(base: Base, call: str) -> None:
    """What another thread synchronises or marks meanwhile may not include it."""
    program = HOLDS + f"check({call})\nlet_go(0, thread)\nshow('left')\n" + ENDS
    with Gate(base.path, state=OPEN) as gate, base.start(program) as process:
        calm(gate, process)
        assert ask(process, "") == "left"
        before = gate.work.markers
        gate.set(CLOSED)
        gate.wait_for_quiet()
        assert gate.work.markers > before
        process.communicate(timeout=60)


def test_a_launch_that_leaves_the_driver_during_a_synchronisation_is_marked_after_it(
    base: Base,
) -> None:
    """Which may have begun before the driver had the launch."""
    program = HOLDS + (
        "other = begin_held(1, stream.value, lambda: cuda.cuStreamSynchronize(stream))\n"
        "let_go(0, thread)\nlet_go(1, other)\nshow('left')\n"
    )
    with Gate(base.path, state=OPEN) as gate, base.start(program + ENDS) as process:
        calm(gate, process)
        assert ask(process, "") == "left"
        before = gate.work.markers
        gate.set(CLOSED)
        gate.wait_for_quiet()
        assert gate.work.markers > before
        process.communicate(timeout=60)


def test_kernels_are_learnt_beside_a_thread_without_a_lane_that_stays_in_the_driver(
    base: Base,
) -> None:
    """Each launch of a kernel that came later was a batch, and waited for the one before."""
    program = HOLDS.replace("crowd =", "launch(); crowd =") + (
        "for function in (1 << 16, 1 << 17):\n"
        "    for _ in range(500):\n        check(launch(function, stream))\n"
        "let_go(0, thread)\nshow('left')\n"
    )
    with Gate(base.path, state=OPEN) as gate, base.start(program + ENDS) as process:
        calm(gate, process)
        before = gate.work.markers
        assert ask(process, "") == "left"
        assert gate.work.markers - before < 250
        process.communicate(timeout=60)


def test_a_thread_without_a_lane_that_is_cancelled_in_the_driver_is_not_waited_for(
    base: Base,
) -> None:
    program = HOLDS + (
        "show(ctypes.CDLL(None).pthread_cancel(c_uint64(thread.ident)))\n"
        "sys.stdin.readline()\nshow(launch())\n"
    )
    with Gate(base.path, state=OPEN) as gate, base.start(program + ENDS) as process:
        calm(gate, process)
        assert ask(process, "") == "0"
        gate.set(CLOSED)
        gate.wait_for_quiet()
        gate.set(OPEN)
        assert ask(process, "") == "0"
        process.communicate(timeout=60)


def test_threads_that_end_leave_their_lanes_to_threads_that_had_none(
    base: Base, tmp_path: Path
) -> None:
    """From then on these launch without a call but once per batch."""
    preload = str(
        compile_c(PROGRAMS / "preloaded" / "gate_counts.c", tmp_path / "gate_counts.so", *SHARED)
    )
    program = (
        STUB
        + """
counter = ctypes.CDLL(None).count_launches
counter.restype = c_uint64
address = lambda function: ctypes.cast(function, c_void_p)
def busy(launches):
    return counter(address(cuda.cuLaunchKernel), address(driver.stub_calls), c_void_p(4096),
                   (c_void_p * 1)(None), c_uint64(1), c_uint64(launches))
crowd = Crowd(launch)
show(busy(10_000))
crowd.leave()
end = time.monotonic() + 20
while busy(10_000) > 1000 and time.monotonic() < end:
    time.sleep(0.01)
show(busy(10_000) <= 1000)
"""
    )
    with Gate(base.path, state=OPEN), base.start(program, LD_PRELOAD=preload) as process:
        assert read(process) == "10000"
        assert read(process) == "True"
        process.communicate(timeout=60)


def test_a_slow_launch_looks_only_at_lanes_that_launched_since_the_last_marker(
    base: Base, tmp_path: Path
) -> None:
    """Pages of lanes, which hold eight threads each, are forbidden: who looks is caught."""
    native = [f"-iquote{ROOT / part}" for part in ("shim/cuda", "shim", "native")]
    flags = (*SHARED, *native)
    preload = str(
        compile_c(PROGRAMS / "preloaded" / "lane_looks.c", tmp_path / "lane_looks.so", *flags)
    )
    program = (
        STUB
        + """
looks = ctypes.CDLL(None).lane_looks
address = ctypes.cast(cuda.cuLaunchKernel, c_void_p)
check(launch(8192))
crowd = Crowd(launch, 1000)
one = made(cuda.cuStreamCreate, 1)
for stream in (None, one):
    pages = sorted(looks(address, c_void_p((n + 10) << 20), stream) for n in range(100))
    show(pages[90])
os._exit(0)
"""
    )
    with Gate(base.path, state=OPEN), base.start(program, LD_PRELOAD=preload) as process:
        assert int(read(process)) <= 1
        assert int(read(process)) <= 1
        process.communicate(timeout=60)
