"""Large copies and fills inside the GPU's memory pass the gate; others never do (SCH-8)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from lab.driver.entry_points import HOOKS
from lab.driver.sim_cuda import read, tell
from lab.shares.gate_world import CLOSED, OPEN, Gate

if TYPE_CHECKING:
    from lab.driver.cuda_proxied import Proxied
    from lab.runs.children import Child

pytestmark = pytest.mark.integration

TABLE = HOOKS.with_name("transfers.def")
NAMES = re.findall(r"^TRANSFER\((\w+)", TABLE.read_text(), re.MULTILINE)
FAMILIES = ("cuMemsetD2D", "cuMemset", "cuMemcpy2D", "cuMemcpy3D", "cuMemcpy", "cuMem")
NOT_FOUND = "500"
# Drivers before CUDA 12.8 do not have them, the simulated one neither. The proxy hides them then;
# the one that counts lines (CONTRIBUTING.md) does not, so they are tried with that one.
RECENT = re.compile("Batch|WithAttributes")

CALLER = """
from lab.calls.copy_calls import *
context()
buffers = Buffers()
for line in sys.stdin:
    name, size = line.split()
    show(hasattr(cuda, size) if name == "has" else call(buffers, name, int(size)))
"""
LARGE, SMALL = 2 << 20, 4096


def _family(name: str) -> str:
    return next(family for family in FAMILIES if name.startswith(family))


def _is_old(name: str) -> bool:
    """With 32-bit addresses, which no buffer here has: behind the gate, it may fail."""
    return "_v2" not in name and f"{name}_v2" in NAMES and not RECENT.search(name)


def _is_hidden(process: Child, name: str) -> bool:
    tell(process, f"has {name}")
    return read(process) == "False"


@pytest.mark.parametrize("family", FAMILIES)
def test_sch_8_a_closed_gate_stops_a_large_copy_or_fill_only(proxied: Proxied, family: str) -> None:
    """SCH-8: every variant, and small ones go on."""
    names = [name for name in NAMES if _family(name) == family]
    assert names
    with Gate(proxied.base.path, state=OPEN) as gate, proxied.start(CALLER) as process:
        tell(process, f"cuMemsetD8_v2 {LARGE}")
        assert read(process) == "0"
        for name in names:
            gate.set(CLOSED)
            gate.wait_for_quiet()
            expected = {NOT_FOUND} if RECENT.search(name) else {"0"}
            expected |= {"0", "1", "400", "801"} if _is_old(name) else set()
            if RECENT.search(name) and _is_hidden(process, name):
                continue
            if "Decompress" not in name:
                tell(process, f"{name} {SMALL}")
                assert read(process) in expected, name
            assert gate.work.waiting == 0, name
            tell(process, f"{name} {LARGE}")
            gate.wait_for_waiting()
            gate.set(OPEN)
            assert read(process) in expected, name
        process.communicate(timeout=60)


def test_sch_8_what_comes_from_the_host_or_goes_there_is_never_stopped(proxied: Proxied) -> None:
    """SCH-8: nor what a stream captures."""
    program = """
    from lab.calls.copy_calls import *
    from lab.calls.gate_calls import captured, node_count
    context()
    buffers = Buffers()
    there, here, size = c_uint64(buffers.device[0]), buffers.host, c_size_t(LARGE)
    address = ctypes.addressof(here)
    pinned = c_void_p()
    check(cuda.cuMemAllocHost_v2(byref(pinned), size))
    check(call(buffers, "cuMemcpy", LARGE))
    show("copied")
    sys.stdin.readline()
    check(cuda.cuMemcpyHtoD_v2(there, here, size))
    check(cuda.cuMemcpyDtoH_v2(here, there, size))
    check(cuda.cuMemcpyHtoDAsync_v2(there, here, size, None))
    check(cuda.cuMemcpyDtoHAsync_v2(here, there, size, None))
    check(cuda.cuMemcpyHtoA_v2(c_void_p(buffers.array[0]), c_size_t(0), here, size))
    for host in (address, pinned.value):
        check(cuda.cuMemcpy(there, c_uint64(host), size))
        check(cuda.cuMemcpyAsync(c_uint64(host), there, size, None))
        check(cuda.cuMemcpy2D_v2(flat(there.value, host, LARGE, (UNIFIED, UNIFIED))))
    check(cuda.cuMemcpy2D_v2(flat(there.value, address, LARGE, (DEVICE, HOST))))
    graph = captured(lambda stream: check(
        cuda.cuMemsetD8Async(there, ctypes.c_ubyte(1), size, stream)))
    show(node_count(graph))
    check(cuda.cuMemcpy2D_v2(flat(*buffers.device, LARGE, (UNIFIED, UNIFIED))))
    show("done")
    """
    with Gate(proxied.base.path, state=OPEN) as gate, proxied.start(program) as process:
        assert read(process) == "copied"
        gate.set(CLOSED)
        gate.wait_for_quiet()
        tell(process, "")
        assert read(process) == "1"
        gate.wait_for_waiting()  # at the last, between two places of the GPU's
        gate.set(OPEN)
        assert read(process) == "done"
        process.communicate(timeout=60)


def test_sch_8_what_a_copy_takes_is_learnt(proxied: Proxied) -> None:
    """SCH-8: it is charged and measured like a kernel."""
    program = """
    from lab.calls.copy_calls import *
    context()
    buffers = Buffers()
    for line in sys.stdin:
        check(call(buffers, "cuMemcpyDtoDAsync_v2", LARGE))
        show("copied")
    """
    with Gate(proxied.base.path, state=OPEN) as gate, proxied.start(program) as process:
        for _ in range(5):
            tell(process, "")
            assert read(process) == "copied"
            gate.set(CLOSED)
            gate.wait_for_quiet()
            gate.set(OPEN)
        assert gate.work.markers > 0
        assert gate.work.busy_ns > 0
        process.communicate(timeout=60)


@pytest.mark.parametrize("how", ["flat", "solid"])
def test_sch_8_a_copy_between_newer_kinds_of_memory_may_be_inside_the_gpu(
    proxied: Proxied, how: str
) -> None:
    """SCH-8: the driver knows what they are."""
    program = """
    from lab.calls.copy_calls import *
    context()
    buffers = Buffers()
    check(call(buffers, "cuMemcpyDtoD_v2", LARGE))
    show("copied")
    sys.stdin.readline()
    if sys.argv[1] == "flat":
        show(cuda.cuMemcpy2D_v2(flat(*buffers.device, LARGE, (5, 6))))
    else:
        copy = operations(buffers, LARGE, kind=3)
        show(hasattr(cuda, "cuMemcpy3DBatchAsync_v2"))
        show(cuda.cuMemcpy3DBatchAsync_v2(c_size_t(1), copy, c_uint64(0), None))
    """
    with Gate(proxied.base.path, state=OPEN) as gate, proxied.start(program, how) as process:
        assert read(process) == "copied"
        gate.set(CLOSED)
        gate.wait_for_quiet()
        tell(process, "")
        if how == "solid" and read(process) == "False":
            return
        gate.wait_for_waiting()
        gate.set(OPEN)
        assert read(process) == {"flat": "1", "solid": NOT_FOUND}[how]
        process.communicate(timeout=60)
