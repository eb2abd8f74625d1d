"""Gates of several GPUs and contexts in one process."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

import pytest

from lab.driver.sim_cuda import ask, read, tell
from lab.shares.gate_world import CLOSED, FREE, OPEN, Gate

if TYPE_CHECKING:
    import subprocess

    from lab.driver.cuda_proxied import Proxied

pytestmark = pytest.mark.integration

PATIENCE = 20.0


def answer(process: subprocess.Popen[str]) -> str:
    """The next line of a program that may hang."""
    if not select.select([process.stdout], [], [], PATIENCE)[0]:
        process.kill()
    return read(process)


def test_each_gpu_has_its_own_gate(proxied: Proxied, gate: Gate) -> None:
    program = """
    from lab.calls.gate_calls import *
    first, second = context(0), context(1)
    there = Kernels()
    check(cuda.cuCtxSetCurrent(first))
    here = Kernels()
    for line in sys.stdin:
        check(cuda.cuCtxSetCurrent(first if line.strip() == "0" else second))
        show((here if line.strip() == "0" else there).launch(20))
    """
    with Gate(proxied.base.path, 1, OPEN) as other, proxied.start(program) as process:
        assert ask(process, "0") == ask(process, "1") == "0"
        gate.set(CLOSED)
        gate.wait_for_quiet()
        assert ask(process, "1") == "0"
        tell(process, "0")
        gate.wait_for_waiting()
        other.set(CLOSED)
        other.wait_for_quiet()
        gate.set(OPEN)
        assert read(process) == "0"
        tell(process, "1")
        other.wait_for_waiting()
        other.set(OPEN)
        assert read(process) == "0"
        process.communicate(timeout=60)


@pytest.mark.parametrize("how", ["cuLaunchKernel", "cuGraphLaunch", "cuMemcpyDtoDAsync_v2"])
def test_the_free_gate_of_one_gpu_opens_no_others(proxied: Proxied, gate: Gate, how: str) -> None:
    """Into a stream of the other GPU's context, while that of the free one is current."""
    program = """
    from lab.calls.gate_calls import *
    first, large = context(0), 4 << 20
    here = Kernels()
    stream, (_, a), (_, b) = made(cuda.cuStreamCreate, 1), alloc(large), alloc(large)
    def launch():
        if sys.argv[1] in LAUNCHES:
            return here.launch(20, stream, sys.argv[1])
        return cuda.cuMemcpyDtoDAsync_v2(c_uint64(a), c_uint64(b), c_size_t(large), stream)
    check(launch())
    second = context(1)
    there = Kernels()
    check(there.launch(20))
    for line in sys.stdin:
        show(launch())
    """
    with Gate(proxied.base.path, 1, FREE), proxied.start(program, how) as process:
        for state in (OPEN, FREE):
            gate.set(state)
            assert ask(process, "") == "0"
            gate.set(CLOSED)
            gate.wait_for_quiet()
            tell(process, "")
            gate.wait_for_waiting()
            gate.set(state)
            assert read(process) == "0"
        process.communicate(timeout=60)


GRAPHS = """
import threading
from lab.calls.gate_calls import *
from lab.calls.cuda_kind_calls import instantiate, memory_graph
contexts = [context(0), context(1)]
def exec_on(gpu):
    check(cuda.cuCtxSetCurrent(contexts[gpu]))
    return instantiate(memory_graph(2 * MIB, device=gpu))
execs = [exec_on(0), exec_on(1)]
def launch(gpu):
    check(cuda.cuCtxSetCurrent(contexts[gpu]))
    return cuda.cuGraphLaunch(execs[gpu], None)
check(launch(0)); check(launch(1))
show("ready")
"""


def test_graphs_with_memory_that_wait_at_one_gpus_gate_keep_nobody_from_anothers(
    proxied: Proxied, gate: Gate
) -> None:
    """No thread holds a lock at a gate: not to launch, upload, make or trim graphs."""
    program = (
        GRAPHS
        + """
sys.stdin.readline()
threading.Thread(target=lambda: show("first", launch(0))).start()
sys.stdin.readline()
show([launch(1) for _ in range(50)].count(0))
show(cuda.cuGraphUpload(execs[1], None), exec_on(1) is None, cuda.cuDeviceGraphMemTrim(1))
"""
    )
    with Gate(proxied.base.path, 1, FREE), proxied.start(program) as process:
        assert read(process) == "ready"
        gate.set(CLOSED)
        tell(process, "")
        gate.wait_for_waiting()
        tell(process, "")
        assert answer(process) == "50"
        assert read(process) == "0 False 0"
        gate.set(OPEN)
        assert read(process) == "first 0"
        process.communicate(timeout=60)


def test_a_graph_that_waited_has_its_memory_anew_when_it_is_let_in(
    proxied: Proxied, gate: Gate
) -> None:
    """Other threads launched and trimmed meanwhile: what its launch takes is still charged."""
    program = (
        GRAPHS
        + """
from lab.calls.cuda_kind_calls import drift
sys.stdin.readline()
threading.Thread(target=lambda: show("first", launch(0))).start()
sys.stdin.readline()
check(launch(1)); check(cuda.cuDeviceGraphMemTrim(0)); check(cuda.cuDeviceGraphMemTrim(1))
show("trimmed")
sys.stdin.readline()
check(cuda.cuCtxSetCurrent(contexts[0])); check(cuda.cuCtxSynchronize())
show(drift(0), cuda.cuCtxSynchronize())
"""
    )
    with Gate(proxied.base.path, 1, FREE), proxied.start(program) as process:
        assert read(process) == "ready"
        gate.set(CLOSED)
        tell(process, "")
        gate.wait_for_waiting()
        tell(process, "")
        assert answer(process) == "trimmed"
        gate.set(OPEN)
        assert read(process) == "first 0"
        tell(process, "")
        assert read(process) == "0 0"
        process.communicate(timeout=60)
