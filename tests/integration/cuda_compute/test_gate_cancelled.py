"""A thread that is cancelled while it waits leaves nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lab.driver.sim_cuda import ask, read
from lab.shares.gate_world import CLOSED, PRESSED, Gate

if TYPE_CHECKING:
    from lab.driver.cuda_proxied import Proxied

pytestmark = pytest.mark.integration

CANCELLED = """
import threading
from lab.calls.gate_calls import *
libc, current, kernels = ctypes.CDLL(None), context(), Kernels()
check(kernels.launch(20000)); check(cuda.cuCtxSynchronize())
ready = threading.Event()
def work(how):
    check(cuda.cuCtxSetCurrent(current))
    libc.pthread_setcanceltype(int(how), None)
    ready.set()
    while True:
        kernels.launch(20000)
        libc.pthread_testcancel()
def begin_thread(how):
    thread = threading.Thread(target=work, args=(how,), daemon=True)
    thread.start()
    ready.wait()
    return thread
def cancel(thread):
    show(libc.pthread_cancel(c_uint64(thread.ident)))
"""


def test_a_thread_that_is_cancelled_while_it_waits_for_room_leaves_its_process_able_to_be_idle(
    proxied: Proxied, gate: Gate
) -> None:
    """Otherwise neighbours would wait for the end of each of its turns."""
    program = (
        CANCELLED
        + """
import time
thread = begin_thread(0)
time.sleep(0.2)
cancel(thread)
sys.stdin.readline()
show(kernels.launch(20))
sys.stdin.readline()
os._exit(0)
"""
    )
    with proxied.start(program) as process:
        assert read(process) == "0"
        gate.set(PRESSED)
        gate.wait(lambda: gate.work.idle == 1)
        assert ask(process, "") == "0"
        gate.wait(lambda: gate.work.idle == 1)
        process.communicate(timeout=60)


@pytest.mark.parametrize("how", [0, 1])
def test_a_thread_that_is_cancelled_at_the_gate_waits_there_no_longer_than_others(
    proxied: Proxied, gate: Gate, how: int
) -> None:
    """
    It ends when the gate opens, or at its next cancellation point, and leaves nothing behind. Until
    then Python runs nothing else: a thread that is cancelled while it waits for the interpreter's
    lock never lets go of it.
    """
    program = (
        CANCELLED
        + """
show("ready")
sys.stdin.readline()
thread = begin_thread(sys.argv[1])
show(thread.native_id)
sys.stdin.readline()
cancel(thread)
sys.stdin.readline()
show(kernels.launch(20))
sys.stdin.readline()
os._exit(0)
"""
    )
    with proxied.start(program, str(how)) as process:
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
