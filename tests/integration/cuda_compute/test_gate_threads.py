"""Many threads that launch: their batch slots, and threads that stay in the driver."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lab.driver.cuda_base import PROGRAMS, ROOT, compile_c
from lab.driver.sim_cuda import ask, read
from lab.shares.gate_world import CLOSED, FREE, OPEN, PRESSED, Gate

if TYPE_CHECKING:
    import subprocess

    from lab.driver.cuda_base import Base

pytestmark = pytest.mark.integration

SHARED = ("-shared", "-fPIC", "-ldl")

# On the driver that does nothing.
STUB = """
from lab.calls.gate_calls import *
import threading
import time
threading.stack_size(1 << 18)
current = context()
def launch(function=4096, stream=None):
    return cuda.cuLaunchKernel(c_void_p(function), 1, 1, 1, 32, 1, 1, 0, stream, None, None)
"""

# Threads that launch once each and stay.
CROWD = (
    STUB
    + """
here, go = threading.Semaphore(0), threading.Event()
statuses = set()
def stay():
    check(cuda.cuCtxSetCurrent(current))
    statuses.add(launch())
    here.release()
    go.wait()
def crowd(count):
    for _ in range(count):
        threading.Thread(target=stay, daemon=True).start()
        here.acquire()
"""
)

# Threads that launch once each and end, one after the other.
PARADE = (
    STUB
    + """
def work():
    check(cuda.cuCtxSetCurrent(current))
    statuses.append(launch())
statuses = []
for _ in range(9000):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
"""
)


@pytest.mark.parametrize("state", [OPEN, PRESSED, FREE])
def test_no_thread_of_some_thousands_is_refused(base: Base, state: int) -> None:
    program = CROWD + "crowd(2300)\nshow(*statuses)\nos._exit(0)\n"
    with Gate(base.path, state=state):
        outcome = base.check(program)
    assert outcome.out == ["0"]
    assert outcome.log == ""


def test_threads_that_end_leave_their_lanes_to_others(base: Base) -> None:
    """Also if they are more than the table holds before anyone has looked for them."""
    with Gate(base.path, state=OPEN):
        outcome = base.check(PARADE + "show(*set(statuses))")
    assert outcome.out == ["0"]
    assert outcome.log == ""


def test_a_thread_beyond_the_8192_of_the_table_is_refused_and_others_go_on(
    base: Base, tmp_path: Path
) -> None:
    """
    What it launched could be neither stopped nor waited for. Threads that nobody may ask for are
    thought to live.
    """
    source = PROGRAMS / "preloaded" / "no_call.c"
    preload = str(compile_c(source, tmp_path / "no_call.so", "-DFORBIDDEN=SYS_tgkill", *SHARED))
    program = STUB + "check(launch())\n" + PARADE.removeprefix(STUB)
    program += "show(statuses.index(800), *set(statuses[8191:]))\nshow(launch())\n"
    with Gate(base.path, state=OPEN):
        outcome = base.check(program, LD_PRELOAD=preload)
    assert outcome.out == ["8191 800", "0"]
    assert outcome.log.startswith("cgpu: launches refused: 8,192 threads of the process")


HELD = 1 << 20

# A thread that stays in the driver, on its way into `stream`.
HOLDS = (
    STUB
    + f"""
driver = ctypes.CDLL(os.path.join(os.path.dirname(os.environ["CGPU_PROXY"]),
                                  "../real/libcuda.so.1"))
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
check(launch())
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
def test_a_gate_closes_only_when_a_thread_has_left_the_driver(base: Base, state: int) -> None:
    program = HOLDS + "let_go(0, thread)\nshow('left')\n" + ENDS
    with Gate(base.path, state=state) as gate, base.start(program) as process:
        calm(gate, process, state)
        gate.set(CLOSED)
        time.sleep(0.3)
        assert gate.work.active != 0
        assert ask(process, "") == "left"
        gate.wait_for_quiet()
        process.communicate(timeout=60)


def monitor_runs(process: subprocess.Popen[str]) -> int:
    """For how long the process's monitor has had a CPU, in ns."""
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        if (task / "comm").read_text() == "cgpu-monitor\n":
            return int((task / "schedstat").read_text().split()[0])
    raise AssertionError("there is no monitor")


@pytest.mark.parametrize("state", [CLOSED, PRESSED])
def test_nobody_spins_for_a_thread_that_stays_in_the_driver(base: Base, state: int) -> None:
    """Many monitors that did kept the thread that all waited for from the CPUs."""
    program = HOLDS + "let_go(0, thread)\nshow('left')\n" + ENDS
    with Gate(base.path, state=OPEN) as gate, base.start(program) as process:
        calm(gate, process)
        gate.set(state)
        before = monitor_runs(process)
        time.sleep(1)
        assert monitor_runs(process) - before < 300_000_000
        assert ask(process, "") == "left"
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


def test_kernels_are_learnt_beside_a_thread_that_stays_in_the_driver(
    base: Base,
) -> None:
    """Each launch of a kernel that came later was a batch, and waited for the one before."""
    program = HOLDS + (
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


def test_a_thread_that_is_cancelled_in_the_driver_is_not_waited_for(
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


def test_a_slow_launch_looks_only_at_lanes_that_launched_since_the_last_marker(
    base: Base, tmp_path: Path
) -> None:
    """Pages of batch slots, which hold eight threads each, are forbidden: who looks is caught."""
    native = [f"-iquote{ROOT / part}" for part in ("shim/cuda", "shim", "native")]
    flags = (*SHARED, *native)
    preload = str(
        compile_c(PROGRAMS / "preloaded" / "slot_looks.c", tmp_path / "slot_looks.so", *flags)
    )
    program = (
        CROWD
        + """
looks = ctypes.CDLL(None).slot_looks
address = ctypes.cast(cuda.cuLaunchKernel, c_void_p)
check(launch(8192))
crowd(1000)
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
