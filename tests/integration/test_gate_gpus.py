"""Gates of several GPUs and contexts in one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from gate_world import CLOSED, FREE, OPEN, Gate
from sim_cuda import ask, read, tell

if TYPE_CHECKING:
    from cuda_proxied import Proxied

pytestmark = pytest.mark.integration


def test_each_gpu_has_its_own_gate(proxied: Proxied, gate: Gate) -> None:
    program = """
    from gate_calls import *
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
    from gate_calls import *
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


def test_a_context_beyond_the_table_is_launched_into_by_nobody(
    proxied: Proxied, gate: Gate
) -> None:
    """Not under a free gate either: nobody could tell when its work has ended."""
    program = """
    from gate_calls import *
    check(cuda.cuInit(0))
    def status():
        context()
        said = Kernels().launch(20, made(cuda.cuStreamCreate, 1))
        check(cuda.cuCtxPopCurrent_v2(byref(c_void_p())))
        return said
    show(*sorted({status() for _ in range(64)}), *[status() for _ in range(3)])
    """
    proxied.base.set_cap(14 << 30)
    for state in (OPEN, FREE):
        gate.set(state)
        with proxied.start(program) as process:
            assert read(process) == "0 800 800 800"
            process.communicate(timeout=60)
