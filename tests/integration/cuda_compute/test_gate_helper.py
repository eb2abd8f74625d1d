"""The helper thread of a process that launches: where it runs, and what happens without it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from lab.driver.cuda_base import PROGRAMS, compile_c
from lab.driver.sim_cuda import ask, read, tell
from lab.shares.gate_world import CLOSED, FREE, OPEN, PRESSED, Gate

if TYPE_CHECKING:
    from pathlib import Path

    from lab.driver.cuda_base import Base
    from lab.driver.cuda_proxied import Proxied

pytestmark = pytest.mark.integration

SHARED = ("-shared", "-fPIC", "-ldl")

# No thread can be created from here on until the limit is raised. It does not hold for root, who
# the program is again when it ends: only root may write the counters of the lines that were run.
NO_THREAD = """
import atexit
import resource
def forbid():
    os.setresuid(65534, 65534, 0)
    atexit.register(os.setresuid, 0, 0, 0)
    limit(1)
def limit(most):
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, hard))
"""

STUB = (
    NO_THREAD
    + """
from lab.calls.gate_calls import *
context()
forbid()
def launch():
    return cuda.cuLaunchKernel(c_void_p(4096), 1, 1, 1, 32, 1, 1, 0, None, None, None)
"""
)


# It launches once, and does nothing more until its standard input ends.
ONE_LAUNCH = """
from lab.calls.gate_calls import *
context()
show(cuda.cuLaunchKernel(c_void_p(4096), 1, 1, 1, 32, 1, 1, 0, None, None, None))
sys.stdin.readline()
"""


def test_a_process_with_much_thread_local_storage_has_a_helper(base: Base, tmp_path: Path) -> None:
    """The arbiter gets word when the gate closes, although the program does nothing more."""
    preload = str(
        compile_c(PROGRAMS / "preloaded" / "large_tls.c", tmp_path / "large_tls.so", *SHARED)
    )
    with Gate(base.path, state=OPEN) as gate, base.start(ONE_LAUNCH, LD_PRELOAD=preload) as process:
        assert read(process) == "0"
        assert gate.work.active != 0
        gate.set(CLOSED)
        gate.wait_for_quiet()
        _, log = process.communicate(timeout=60)
    assert log == ""


def test_the_helper_of_one_gpu_makes_no_call_that_old_filters_do_not_know(
    base: Base, tmp_path: Path
) -> None:
    """Such a filter may end the process: futex_waitv is of 2021."""
    flags = ("-DFORBIDDEN=449", "-DENDS", *SHARED)
    source = PROGRAMS / "preloaded" / "no_call.c"
    preload = str(compile_c(source, tmp_path / "no_call.so", *flags))
    with Gate(base.path, state=OPEN) as gate, base.start(ONE_LAUNCH, LD_PRELOAD=preload) as process:
        assert read(process) == "0"
        gate.set(CLOSED)
        gate.wait_for_quiet()
        process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.parametrize("state", [FREE, OPEN, PRESSED])
def test_without_a_helper_a_launch_asks_for_no_more_than_with_one(
    base: Base, tmp_path: Path, state: int
) -> None:
    """Nothing under a free gate; otherwise once per batch. The log has one line."""
    preload = str(
        compile_c(PROGRAMS / "preloaded" / "gate_counts.c", tmp_path / "gate_counts.so", *SHARED)
    )
    program = (
        NO_THREAD
        + """
from lab.calls.gate_calls import *
context()
folder = os.path.dirname(os.environ["CGPU_PROXY"])
driver = ctypes.CDLL(os.path.join(folder, "../real/libcuda.so.1"))
forbid()
counter = ctypes.CDLL(None).count_launches
counter.restype = c_uint64
address = lambda function: ctypes.cast(function, c_void_p)
def count(launches):
    return counter(address(cuda.cuLaunchKernel), address(driver.stub_calls), c_void_p(4096),
                   (c_void_p * 1)(None), c_uint64(1), c_uint64(launches))
count(100)
show(count(100_000))
"""
    )
    with Gate(base.path, state=state), base.start(program, LD_PRELOAD=preload) as process:
        busy = int(read(process))
        _, log = process.communicate(timeout=60)
    assert busy == 0 if state == FREE else busy < 1000
    assert log.startswith("cgpu: no helper thread can be made")
    assert log.count("\n") == 1


def test_that_there_is_no_helper_is_said_once_however_long_none_can_be_made(
    base: Base, tmp_path: Path
) -> None:
    """Creating it is tried again all the time."""
    preload = str(
        compile_c(PROGRAMS / "preloaded" / "clock_jumps.c", tmp_path / "clock_jumps.so", *SHARED)
    )
    program = STUB + ("for line in sys.stdin:\n    ctypes.CDLL(None).jump(6)\n    show(launch())\n")
    with Gate(base.path, state=OPEN) as gate:
        gate.limits.share_ppm = 1_000_000
        with base.start(program, LD_PRELOAD=preload) as process:
            assert [ask(process, "") for _ in range(4)] == ["0"] * 4
            _, log = process.communicate(timeout=60)
    assert log.startswith("cgpu: no helper thread can be made")
    assert log.count("\n") == 1


def test_without_a_helper_the_gate_is_obeyed_and_the_arbiter_told_by_the_launch_that_waits(
    base: Base,
) -> None:
    """Fail closed; and nobody arbitrating is found out as well."""
    program = STUB + "for line in sys.stdin:\n    show(launch())\n"
    with Gate(base.path, state=OPEN) as gate, base.start(program) as process:
        for state in (OPEN, PRESSED, FREE):
            gate.set(state)
            assert ask(process, "") == ask(process, "") == "0"
            gate.set(CLOSED)
            tell(process, "")
            gate.wait_for_waiting()
            gate.wait_for_quiet()
            gate.set(state)
            assert read(process) == "0"
        gate.limits.share_ppm = 500_000
        gate.set(CLOSED)
        gate.alive = False
        tell(process, "")
        assert read(process) == "0"
        process.communicate(timeout=60)


def test_without_a_helper_a_synchronised_process_says_that_it_is_quiet(base: Base) -> None:
    """Before its gate closes, and after."""
    program = STUB + (
        "for line in sys.stdin:\n"
        "    show(cuda.cuCtxSynchronize() if 'sync' in line else launch())\n"
    )
    with Gate(base.path, state=OPEN) as gate, base.start(program) as process:
        for _ in range(3):
            assert ask(process, "") == "0"
            assert gate.work.active != 0
            assert ask(process, "sync") == "0"
            assert gate.work.active == 0
        gate.set(FREE)
        assert ask(process, "") == "0"
        gate.set(CLOSED)
        assert ask(process, "sync") == "0"
        assert gate.work.active == 0
        process.communicate(timeout=60)


@pytest.mark.parametrize("state", [FREE, OPEN])
def test_without_a_helper_work_that_waits_for_the_program_does_not_hang(
    proxied: Proxied, gate: Gate, state: int
) -> None:
    """A launch does not wait for its end, which may depend on what the thread does next."""
    program = (
        NO_THREAD
        + """
import threading
from lab.calls.gate_calls import *
context(); kernels = Kernels()
stream, go, begun = made(cuda.cuStreamCreate, NON_BLOCKING), threading.Event(), threading.Event()
function = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: (begun.set(), go.wait()))
check(cuda.cuLaunchHostFunc(stream, function, None))
begun.wait()
forbid()
for _ in range(5):
    check(kernels.launch(20, stream))
go.set()
show(cuda.cuStreamSynchronize(stream))
"""
    )
    gate.set(state)
    with proxied.start(program) as process:
        out, log = process.communicate(timeout=60)
    assert out == "0\n", log


def test_a_helper_is_made_as_soon_as_one_can_be(base: Base) -> None:
    """Creating it is tried again now and then; from then on it does its usual work."""
    program = STUB + (
        "for line in sys.stdin:\n    limit(4000) if 'raise' in line else 0\n    show(launch())\n"
    )
    with Gate(base.path, state=OPEN) as gate, base.start(program) as process:
        assert ask(process, "") == "0"
        assert ask(process, "raise") == "0"

        def is_set() -> bool:
            """Whether somebody says so when it has nothing to do."""
            gate.set(PRESSED)
            assert ask(process, "") == "0"
            time.sleep(0.1)
            return bool(gate.work.idle)

        gate.wait(is_set)
        process.communicate(timeout=60)


@pytest.mark.parametrize("where", ["leader", "thread"])
def test_the_helper_runs_on_all_processors_of_the_process_and_in_no_real_time_class(
    base: Base, where: str
) -> None:
    """Whatever processor and class the first launching thread has."""
    program = """
    import threading
    import time
    from lab.calls.gate_calls import *
    current, every = context(), os.sched_getaffinity(0)
    def launch():
        os.sched_setaffinity(0, {min(every)})
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        check(cuda.cuCtxSetCurrent(current))
        check(cuda.cuLaunchKernel(c_void_p(4096), 1, 1, 1, 32, 1, 1, 0, None, None, None))
    if sys.argv[1] == "leader":
        launch()
    else:
        thread = threading.Thread(target=launch)
        thread.start()
        thread.join()
    helpers = []
    while not helpers:
        time.sleep(0.01)
        helpers = [int(task) for task in os.listdir("/proc/self/task")
                   if open(f"/proc/self/task/{task}/comm").read() == "cgpu-monitor\\n"]
    helper = helpers[0]
    show(len(every) > 1, os.sched_getaffinity(helper) == every,
         os.sched_getscheduler(helper) == os.SCHED_OTHER)
    """
    with Gate(base.path, state=OPEN):
        assert base.check(program, where).out == ["True True True"]
