"""Pools whose memory is freed in streams that have not got there, through the libcuda proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cgpu_sim import Fault, inject
from lab.driver.code_images import START

if TYPE_CHECKING:
    from lab.driver.cuda_proxied import Proxied

pytestmark = pytest.mark.integration

# A stream that was held up goes on when ``go`` is set, or after a while.
HELD = (
    START
    + """
import struct, threading
go, gave_up = threading.Event(), []
host = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: gave_up.append(not go.wait(60)))
one, two = made(cuda.cuStreamCreate, 1), made(cuda.cuStreamCreate, 1)
def hold_up(stream):
    check(cuda.cuLaunchHostFunc(stream, host, None))
"""
)
# Nothing is left under the cap, and a pool's next byte in the stream takes 2 MiB.
FULL = (
    HELD
    + """
properties = pool_properties()
properties[4:8] = struct.pack("<i", POSIX_FD)
pool = made(cuda.cuMemPoolCreate, properties)
check(alloc((left() - 2 * MIB) // (2 * MIB) * 2 * MIB)[0])
check(alloc_async(MIB, pool, one)[0])
if left() > 0:
    check(alloc(left())[0])
full = used()
"""
)


def test_mem_1_memory_freed_in_a_busy_stream_stays_charged_until_that_is_synchronised(
    proxied: Proxied,
) -> None:
    """MEM-1: the driver has it until then; neither trimming nor another stream is enough."""
    out = proxied.check(
        HELD
        + """
status, address = alloc_async(64 * MIB, None, one)
hold_up(one)
check(free_async(address, one))
check(cuda.cuStreamSynchronize(two))
check(cuda.cuMemPoolTrimTo(default_pool(), c_size_t(0)))
show((used() - base) // MIB, drift(), alloc(left() + 1)[0], (used() - base) // MIB, drift())
go.set()
check(cuda.cuStreamSynchronize(one))
show(used() - base, drift(), gave_up)
"""
    ).out
    assert out == ["64 0 2 64 0", "0 0 [False]"]


def test_mem_6_memory_freed_in_a_busy_stream_can_be_had_again_in_it_at_once(
    proxied: Proxied,
) -> None:
    """MEM-6: up to the cap. Another stream cannot have it yet: that would need more."""
    out = proxied.check(
        HELD
        + """
most = left() // (2 * MIB) * 2 * MIB
status, address = alloc_async(most, None, one)
hold_up(one)
check(free_async(address, one))
show(status, alloc_async(most, None, two)[0], drift())
status, address = alloc_async(most, None, one)
show(status, drift(), gave_up)
go.set()
check(free_async(address, one))
check(cuda.cuStreamSynchronize(one))
show(used() - base, drift())
"""
    ).out
    assert out == ["0 2 0", "0 0 []", "0 0"]


def test_mem_1_a_destroyed_pool_is_charged_until_busy_streams_have_let_go_of_it(
    proxied: Proxied,
) -> None:
    """MEM-1: all of its memory was freed before, so none is in use."""
    out = proxied.check(
        HELD
        + """
pool = make_pool(threshold=2**64 - 1)
status, address = alloc_async(64 * MIB, pool, one)
hold_up(one)
check(free_async(address, one))
check(cuda.cuMemPoolDestroy(pool))
show((used() - base) // MIB, drift(), alloc_async(MIB, pool)[0], cuda.cuMemPoolDestroy(pool))
go.set()
check(cuda.cuStreamSynchronize(one))
show(used() - base, drift())
"""
    ).out
    assert out == ["64 0 1 1", "0 0"]


def test_a_refused_allocation_waits_shortly_and_ends_no_capture(proxied: Proxied) -> None:
    """The stream waits for the very thread. What the driver took beyond the cap is charged until
    the stream gets there, and no longer; another thread's capture goes on.
    """
    out = proxied.check(
        FULL
        + """
current = c_void_p()
check(cuda.cuCtxGetCurrent(byref(current)))
hold_up(one)
check(cuda.cuStreamBeginCapture_v2(two, 0))
def ask():
    check(cuda.cuCtxSetCurrent(current))
    show(alloc_async(MIB, pool, one)[0], gave_up)
asking = threading.Thread(target=ask)
asking.start()
asking.join()
show(cuda.cuStreamEndCapture(two, byref(c_void_p())), (used() - full) // MIB, drift())
go.set()
check(cuda.cuStreamSynchronize(one))
show(used() - full, drift())
"""
    ).out
    assert out == ["2 []", "0 2 0", "0 0"]


def test_a_refused_allocation_gives_back_what_its_stream_lets_go_of_meanwhile(
    proxied: Proxied,
) -> None:
    """The stream goes on when more is charged than the cap. The wait is longer than usual here."""
    inject(proxied.machine, Fault("cuStreamQuery", delay_us=50_000, repeat=True))
    out = proxied.check(
        FULL
        + """
import time
def see(_):
    while used() <= full:
        time.sleep(0.001)
host = ctypes.CFUNCTYPE(None, c_void_p)(see)
hold_up(one)
show(alloc_async(MIB, pool, one)[0], used() - full, drift())
"""
    ).out
    assert out == ["2 0 0"]
