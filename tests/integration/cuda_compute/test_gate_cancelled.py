"""A thread that is cancelled while it waits leaves nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lab.driver.cuda_base import PROGRAMS, compile_c
from lab.driver.sim_cuda import ask, read
from lab.shares.gate_world import CLOSED, PRESSED, Gate

if TYPE_CHECKING:
    from lab.driver.cuda_proxied import Proxied

pytestmark = pytest.mark.integration

CANCELLED = """
from lab.calls.gate_calls import *
libc, current, kernels = ctypes.CDLL(None), context(), Kernels()
check(kernels.launch(20000)); check(cuda.cuCtxSynchronize())
handle = c_uint64()
def begin_thread(library, how):
    pointers = cuda.cuCtxSetCurrent, cuda.cuLaunchKernel, current, kernels.function(20000)
    return ctypes.CDLL(library).begin_launches(*pointers, int(how), byref(handle))
def cancel():
    show(libc.pthread_cancel(handle))
"""


@pytest.fixture
def library(tmp_path: Path) -> str:
    """The library whose thread is cancelled."""
    source = PROGRAMS / "compute" / "launches.c"
    return str(compile_c(source, tmp_path / "launches.so", "-shared", "-fPIC", "-pthread"))


def test_a_thread_that_is_cancelled_while_it_waits_for_room_leaves_its_process_able_to_be_idle(
    proxied: Proxied, gate: Gate, library: str
) -> None:
    """Otherwise neighbours would wait for the end of each of its turns."""
    program = (
        CANCELLED
        + """
import time
begin_thread(sys.argv[1], 0)
time.sleep(0.2)
cancel()
sys.stdin.readline()
show(kernels.launch(20))
sys.stdin.readline()
os._exit(0)
"""
    )
    with proxied.start(program, library) as process:
        assert read(process) == "0"
        gate.set(PRESSED)
        gate.wait(lambda: gate.work.idle == 1)
        assert ask(process, "") == "0"
        gate.wait(lambda: gate.work.idle == 1)
        process.communicate(timeout=60)


@pytest.mark.parametrize("how", [0, 1])
def test_a_thread_that_is_cancelled_at_the_gate_waits_there_no_longer_than_others(
    proxied: Proxied, gate: Gate, library: str, how: int
) -> None:
    """It ends when the gate opens, or at its next cancellation point, and leaves nothing behind."""
    program = (
        CANCELLED
        + """
show("ready")
sys.stdin.readline()
show(begin_thread(*sys.argv[1:]))
sys.stdin.readline()
cancel()
sys.stdin.readline()
show(kernels.launch(20))
sys.stdin.readline()
os._exit(0)
"""
    )
    with proxied.start(program, library, str(how)) as process:
        assert read(process) == "ready"
        gate.set(CLOSED)
        thread = Path(f"/proc/{process.pid}/task/{ask(process, '')}")
        gate.wait_for_waiting()
        assert ask(process, "") == "0"
        gate.set(PRESSED)
        gate.wait(lambda: not thread.exists())
        assert gate.work.waiting == 0
        gate.wait(lambda: gate.work.idle == 1 or gate.work.active == 0)
        assert ask(process, "") == "0"
        gate.set(CLOSED)
        gate.wait_for_quiet()
        process.communicate(timeout=60)
