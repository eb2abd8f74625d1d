"""Thousands of streams: nobody waits for them under a lock, and there are no more than 8,192."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab.driver.sim_cuda import ask, read
from lab.shares.gate_world import CLOSED, FREE, OPEN, PRESSED, Gate

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from lab.driver.cuda_proxied import Proxied

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]  # what fails here, hangs

# The streams, one of which holds what each test is about. All others are idle at "launched".
START = """
from lab.calls.gate_calls import *
current = context(); kernels = Kernels()
streams = [made(cuda.cuStreamCreate, NON_BLOCKING) for _ in range(int(sys.argv[1]))]
some = streams[10]
check(kernels.launch(20, some))
check(cuda.cuCtxSynchronize())
"""

# A kernel that never ends, under a free gate; then what other threads do, line by line.
STAYS = """
word = c_uint32()
kernels.stay(word, some)
show("launched")
for line in sys.stdin:
    if line == "end\\n":
        word.value = 1
        show(cuda.cuStreamSynchronize(some))
    elif line == "create\\n":
        other = made(cuda.cuStreamCreate, NON_BLOCKING)
        show(done(some))
    else:
        check(kernels.launch(20, other))
        show(cuda.cuStreamSynchronize(other))
"""


class Crowd:
    """Starts programs with many streams, which a test that fails leaves hanging."""

    def __init__(self, proxied: Proxied) -> None:
        self._proxied = proxied
        self.started: list[subprocess.Popen[str]] = []

    def start(self, program: str, streams: int) -> subprocess.Popen[str]:
        """A program that has launched."""
        return self.start_bare(START + program, streams)

    def start_bare(self, program: str, streams: int) -> subprocess.Popen[str]:
        """The same, with what it begins with."""
        process = self._proxied.start(program, str(streams))
        self.started.append(process)
        assert read(process) == "launched"
        return process


@pytest.fixture
def crowd(proxied: Proxied) -> Iterator[Crowd]:
    """Whatever was started has ended afterwards."""
    crowd = Crowd(proxied)
    yield crowd
    for process in crowd.started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("streams", [1100, 8000])
def test_a_kernel_that_stays_in_one_of_many_streams_hangs_nothing(
    crowd: Crowd, gate: Gate, streams: int
) -> None:
    """The monitor waited for all streams of the context, with the lock that every thread needs."""
    gate.set(FREE)
    process = crowd.start(STAYS, streams)
    gate.set(CLOSED)
    gate.wait_for_quiet()
    assert ask(process, "create") == "False"
    for _ in range(3):
        gate.set(OPEN)
        assert ask(process, "launch") == "0"
        gate.set(CLOSED)
        gate.wait_for_quiet()
    gate.set(OPEN)
    assert ask(process, "end") == "0"


def test_nobody_waits_for_a_lock_while_one_of_many_streams_is_waited_for(
    crowd: Crowd, gate: Gate
) -> None:
    """The gate counts as used until the kernel has ended; a thread makes a stream meanwhile."""
    program = """
for _ in range(3):
    check(kernels.launch(200000, some))
show("launched")
sys.stdin.readline()
made(cuda.cuStreamCreate, NON_BLOCKING)
show(done(some))
sys.stdin.readline()
show(done(some))
"""
    gate.set(FREE)
    process = crowd.start(program, 1100)
    gate.set(CLOSED)
    assert ask(process, "") == "False"
    assert gate.work.active != 0
    gate.wait_for_quiet()
    assert ask(process, "") == "True"


def test_streams_of_threads_that_rest_take_no_place_from_a_stream_at_work(
    crowd: Crowd, gate: Gate
) -> None:
    """Without a place its kernels are counted in the legacy stream, which waits for none."""
    program = """
import threading, time
threading.stack_size(1 << 18)
go = threading.Event()
def rest():
    check(cuda.cuCtxSetCurrent(current))
    check(kernels.launch(20, None, "cuLaunchKernel_ptsz"))
    here.release()
    go.wait()
here = threading.Semaphore(0)
for _ in range(1030):
    threading.Thread(target=rest, daemon=True).start()
    here.acquire()
check(cuda.cuCtxSynchronize())
new = made(cuda.cuStreamCreate, NON_BLOCKING)
for us in (200000, 20, 200000, 20):
    check(kernels.launch(us, new)); time.sleep(0.001)
check(cuda.cuStreamSynchronize(new))
for _ in range(10):
    check(kernels.launch(200000, new))
show("launched")
sys.stdin.readline()
show(done(new))
os._exit(0)
"""
    gate.set(PRESSED)
    process = crowd.start(program, 11)
    gate.set(CLOSED)
    gate.wait_for_quiet()
    assert ask(process, "") == "True"


# Streams that wait for the program, with a kernel behind each, until a line is read.
WAIT = """
from lab.calls.gate_calls import *
import mmap, time
current = context(); kernels = Kernels()
word = c_uint32.from_buffer(mmap.mmap(-1, 4096))
address = c_void_p(ctypes.addressof(word))
check(cuda.cuMemHostRegister_v2(address, ctypes.c_size_t(4096), 0))
def wait(stream=None):
    stream = stream or made(cuda.cuStreamCreate, NON_BLOCKING)
    check(cuda.cuStreamWaitValue32_v2(stream, c_uint64(address.value), 1, 0))
    check(kernels.launch(20, stream))
    return stream
"""


def test_however_many_streams_wait_for_the_program_the_gate_gets_quiet(
    crowd: Crowd, gate: Gate
) -> None:
    """What the others do is waited for all the same, that of the streams when they go on too."""
    program = """
streams = [wait() for _ in range(int(sys.argv[1]))]
some = made(cuda.cuStreamCreate, NON_BLOCKING)
show("launched")
sys.stdin.readline()
check(kernels.launch(200000, some))
show("again")
sys.stdin.readline()
show(done(some), done(streams[0]), done(streams[-1]))
[check(kernels.launch(200000, stream)) for stream in (streams[0], streams[-1])]
show("full")
sys.stdin.readline()
word.value = 1
show("go")
sys.stdin.readline()
show(done(streams[0]), done(streams[-1]))
"""
    gate.set(FREE)
    process = crowd.start_bare(WAIT + program, 300)
    gate.set(CLOSED)
    gate.wait_for_quiet()
    gate.set(OPEN)
    assert ask(process, "") == "again"
    gate.set(CLOSED)
    gate.wait_for_quiet()
    gate.set(OPEN)
    assert ask(process, "") == "True False False"
    assert read(process) == "full"
    gate.set(CLOSED)
    gate.wait_for_quiet()
    assert ask(process, "") == "go"
    gate.wait(lambda: gate.work.active != 0)
    gate.wait_for_quiet()
    assert ask(process, "") == "True True"


def test_a_stream_beyond_the_8192_of_the_table_is_refused_and_the_others_go_on(
    crowd: Crowd, gate: Gate
) -> None:
    """What is launched into it could not be waited for. A context's default stream is one too."""
    program = """
def create():
    return cuda.cuStreamCreate(ctypes.byref(c_void_p()), NON_BLOCKING)
statuses = [create()]
check(kernels.launch(200000, streams[-1]))
show("launched")
sys.stdin.readline()
show(done(streams[-1]))
check(cuda.cuStreamDestroy_v2(streams.pop()))
show(*statuses, create(), create())
"""
    process = crowd.start(program, 8191)
    gate.set(CLOSED)
    gate.wait_for_quiet()
    assert ask(process, "") == "True"
    assert read(process) == "2 0 2"
