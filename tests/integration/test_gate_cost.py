"""What a launch asks of the driver, the C library and the kernel: nothing, but once per batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cuda_base import PROGRAMS, STUB_CAP, compile_c, lay_out, stub_gpus
from gate_world import CLOSED, FREE, OPEN, PRESSED, Gate
from sim_cuda import read, tell

if TYPE_CHECKING:
    from pathlib import Path

    from cuda_base import Base

pytestmark = pytest.mark.integration

LAUNCHES = 400_000

# In a context and stream of each GPU that is named, then in the last of these.
PROGRAM = """
from gate_calls import *
for gpu in sys.argv[1:]:
    context(int(gpu))
    made(cuda.cuStreamCreate, 1)
folder = os.path.dirname(os.environ["CGPU_PROXY"])
driver = ctypes.CDLL(os.path.join(folder, "../real/libcuda.so.1"))
counter = ctypes.CDLL(None).count_launches
counter.restype = c_uint64
address = lambda function: ctypes.cast(function, c_void_p)
one, two, three = (made(cuda.cuStreamCreate, 1) for _ in range(3))
def count(launches, *streams):
    return counter(address(cuda.cuLaunchKernel), address(driver.stub_calls), c_void_p(4096),
                   (c_void_p * len(streams))(*streams), c_uint64(len(streams)), c_uint64(launches))
count(100, None, one, two, three)
for line in sys.stdin:
    launches = int(line)
    show(*[count(launches, *by_turns)
           for by_turns in ((None,), (one,), (None, one), (None, one, two, three))])
"""


@pytest.fixture
def preload(tmp_path: Path) -> str:
    flags = ("-shared", "-fPIC", "-ldl")
    return str(compile_c(PROGRAMS / "gate_counts.c", tmp_path / "gate_counts.so", *flags))


@pytest.mark.parametrize("state", [OPEN, PRESSED])
def test_a_contended_launch_makes_no_call_but_once_per_batch(
    base: Base, preload: str, state: int
) -> None:
    """No lock, system call, clock or driver call, in one stream or up to four by turns."""
    with (
        Gate(base.path, state=state) as gate,
        base.start(PROGRAM, "0", LD_PRELOAD=preload) as process,
    ):
        gate.wait(gate.works)
        before = gate.work.markers
        tell(process, str(LAUNCHES))
        busy = sum(map(int, read(process).split()))
        placed = gate.work.markers - before
        process.communicate(timeout=60)
    assert 0 < busy < LAUNCHES // 100
    assert busy <= placed + 10


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
        assert read(process) == "0 0 0 0"
        assert gate.work.markers == 0
        process.communicate(timeout=60)


def test_a_driver_that_writes_no_values_is_asked_by_events(base: Base) -> None:
    program = """
    from gate_calls import *
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
            assert gate.work.markers >= 250
            gate.set(CLOSED)
            gate.wait_for_quiet()
            process.communicate(timeout=60)
        assert process.returncode == 0


def test_a_forked_child_that_starts_anew_has_work_of_its_own(base: Base) -> None:
    """And its own monitor: the parent's is not there."""
    program = """
    from gate_calls import *
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


def test_threads_that_nobody_may_ask_for_are_thought_to_live(base: Base, tmp_path: Path) -> None:
    flags = ("-shared", "-fPIC", "-ldl")
    preload = str(compile_c(PROGRAMS / "no_tgkill.c", tmp_path / "no_tgkill.so", *flags))
    program = """
    from gate_calls import *
    context()
    for line in sys.stdin:
        show(cuda.cuLaunchKernel(c_void_p(4096), 1, 1, 1, 32, 1, 1, 0, None, None, None))
    """
    with Gate(base.path, state=OPEN) as gate, base.start(program, LD_PRELOAD=preload) as process:
        tell(process, "")
        assert read(process) == "0"
        gate.wait(lambda: gate.work.threads == 1)
        process.communicate(timeout=60)


def test_where_no_helper_can_be_made_every_launch_is_waited_for(base: Base) -> None:
    """Fail closed: the gate is obeyed and the arbiter is told all the same, with one line."""
    program = """
    import resource
    from gate_calls import *
    context()
    os.setuid(65534)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    for line in sys.stdin:
        show(cuda.cuLaunchKernel(c_void_p(4096), 1, 1, 1, 32, 1, 1, 0, None, None, None))
    """
    with Gate(base.path, state=OPEN) as gate, base.start(program) as process:
        for _ in range(3):
            tell(process, "")
            assert read(process) == "0"
            assert gate.work.active == 0
        gate.set(CLOSED)
        tell(process, "")
        gate.wait_for_waiting()
        gate.set(OPEN)
        assert read(process) == "0"
        gate.limits.share_ppm = 500_000
        gate.set(CLOSED)
        gate.alive = False
        tell(process, "")
        assert read(process) == "0"
        _, log = process.communicate(timeout=60)
    assert log == "cgpu: launches are waited for one by one: no helper thread can be made\n"


def test_a_process_for_which_there_is_no_room_launches_nothing(tmp_path: Path, stub: Path) -> None:
    """The table of work is full of living processes: NOT_PERMITTED and one line."""
    base = lay_out(tmp_path / "full", stub, stub_gpus(STUB_CAP))
    program = """
    from gate_calls import *
    context()
    print(cuda.cuLaunchKernel(c_void_p(4096), 1, 1, 1, 32, 1, 1, 0, None, None, None))
    """
    with Gate(base.path, state=OPEN) as gate:
        gate.fill_works()
        outcome = base.check(program)
    assert outcome.out == ["800"]
    assert outcome.log.startswith("cgpu: launches refused: ")
