"""A closed gate stops every entry point that launches, and an open one lets it go (SCH-8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab.driver.sim_cuda import read, tell
from lab.shares.gate_world import CLOSED, FREE, OPEN, PRESSED, Gate

if TYPE_CHECKING:
    from lab.driver.cuda_proxied import Proxied

pytestmark = pytest.mark.integration

WITHOUT_STREAM = ["cuLaunch", "cuLaunchGrid"]
WITH_STREAM = [
    "cuLaunchKernel", "cuLaunchKernel_ptsz", "cuLaunchKernelEx", "cuLaunchKernelEx_ptsz",
    "cuLaunchCooperativeKernel", "cuLaunchCooperativeKernel_ptsz", "cuLaunchGridAsync",
    "cuLaunchCooperativeKernelMultiDevice", "cuGraphLaunch", "cuGraphLaunch_ptsz",
]  # fmt: skip

LAUNCHER = """
from lab.calls.gate_calls import *
kernels = begin()
streams = {
    "null": None, "legacy": c_void_p(1), "thread": c_void_p(2),
    "blocking": made(cuda.cuStreamCreate, 0),
    "free": made(cuda.cuStreamCreateWithPriority, NON_BLOCKING, 0),
}
if "Graph" in sys.argv[1]:
    kernels.launch(20, None, sys.argv[1])  # makes the graph
    check(cuda.cuCtxSynchronize())
for line in sys.stdin:
    show(kernels.launch(20, streams[line.strip()], sys.argv[1]))
"""


@pytest.mark.parametrize("how", WITHOUT_STREAM + WITH_STREAM)
def test_sch_8_a_closed_gate_stops_this_entry_point(proxied: Proxied, how: str) -> None:
    """SCH-8: on default, per-thread and user streams alike; the launch goes when it opens."""
    kinds = ["null"] if how in WITHOUT_STREAM else ["null", "legacy", "thread", "blocking", "free"]
    with Gate(proxied.base.path, state=OPEN) as gate, proxied.start(LAUNCHER, how) as process:
        if "Graph" in how:
            gate.wait(gate.works)
        for index, kind in enumerate(kinds):
            gate.set(CLOSED)
            gate.wait_for_quiet()
            tell(process, kind)
            gate.wait_for_waiting()
            assert all(work.active == 0 for work in gate.works())
            assert gate.set((OPEN, PRESSED, FREE)[index % 3])
            assert read(process) == "0"
            assert gate.work.active == gate.word
            assert gate.work.waiting == 0
        process.communicate(timeout=60)


def test_sch_8_an_entry_point_that_was_looked_up_is_stopped_as_well(proxied: Proxied) -> None:
    """SCH-8: cuGetProcAddress hands out the gate, with the right default stream."""
    program = """
    from lab.calls.gate_calls import *
    kernels = begin()
    kind = ctypes.CFUNCTYPE(c_int, c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p)
    for flags in (0, 2):
        sys.stdin.readline()
        status, address, found = lookup("cuLaunchKernel", 12000, flags)
        show(status, kind(address)(kernels.function(), 1, 1, 1, 32, 1, 1, 0, None, None, None))
    """
    with Gate(proxied.base.path) as gate, proxied.start(program) as process:
        for _ in range(2):
            gate.set(CLOSED)
            tell(process, "")
            gate.wait_for_waiting()
            gate.set(OPEN)
            assert read(process) == "0 0"
        process.communicate(timeout=60)
