"""Linear memory freed in a stream, through the libcuda proxy: charged until it is synchronised."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab.driver.code_images import run

if TYPE_CHECKING:
    from lab.driver.cuda_proxied import Proxied

pytestmark = pytest.mark.integration


def test_linear_memory_freed_in_a_stream_is_given_back_when_that_is_synchronised(
    proxied: Proxied,
) -> None:
    """MEM-1: the driver has it until then; another stream's synchronisation is not enough."""
    out = run(
        proxied,
        """
        one, two = made(cuda.cuStreamCreate, 0), made(cuda.cuStreamCreate, 0)
        def freed(stream):
            status, address = alloc(64 * MIB)
            check(free_async(address, stream))
            return (used() - base) // MIB
        show(freed(one))
        check(cuda.cuStreamSynchronize(two))
        show((used() - base) // MIB)
        check(cuda.cuStreamSynchronize(one))
        show((used() - base) // MIB, freed(two), cuda.cuCtxSynchronize(), (used() - base) // MIB)
        show(freed(one), cuda.cuStreamDestroy_v2(one), (used() - base) // MIB)
        status, address = alloc(64 * MIB)
        show(free_async(address + 512), (used() - base) // MIB)
        show(free(address), used() - base, drift())
        """,
    )
    assert out == ["64", "64", "0 64 0 0", "64 0 0", "1 64", "0 0 0"]


def test_mem_1_what_was_freed_in_a_stream_goes_with_its_context(proxied: Proxied) -> None:
    """MEM-1: nothing stays charged after the last context, synchronised before or not."""
    outcome = proxied.check(
        """
        made = context()
        stream = c_void_p()
        check(cuda.cuStreamCreate(byref(stream), 0))
        check(cuda.cuMemFreeAsync(c_uint64(alloc(4000 * MIB)[1]), stream))
        check(cuda.cuCtxDestroy_v2(made))
        print(used())
        check(cuda.cuDevicePrimaryCtxRetain(byref(made), 0))
        check(cuda.cuCtxSetCurrent(made))
        check(cuda.cuMemFreeAsync(c_uint64(alloc(4000 * MIB)[1]), None))
        check(cuda.cuDevicePrimaryCtxRelease_v2(0))
        print(used())
        """
    )
    assert outcome.out == ["0", "0"]


@pytest.mark.parametrize(("streams", "size"), [(100, 20 << 20), (5_000, 1 << 19)])
def test_mem_1_what_was_freed_in_many_streams_stays_charged_until_they_are_synchronised(
    proxied: Proxied, streams: int, size: int
) -> None:
    """MEM-1: beyond the streams that the proxy tells apart, until their context is synchronised."""
    out = run(
        proxied,
        f"""
        before = used()
        memory = [alloc({size})[1] for _ in range({streams})]
        whole = used()
        for address in memory:
            check(free_async(address, made(cuda.cuStreamCreate, 1)))
        print(whole - before >= {size * streams}, used() - whole)
        check(cuda.cuCtxSynchronize())
        print(used() - before)
        """,
    )
    assert out == ["True 0", "0"]


def test_mem_1_what_was_freed_in_a_stream_waits_for_its_own_thread_and_context(
    proxied: Proxied,
) -> None:
    """MEM-1: default streams of others have the same handle, and a stream may be of any context."""
    out = run(
        proxied,
        """
        import threading
        before, mine = used(), c_void_p()
        check(cuda.cuCtxGetCurrent(byref(mine)))
        def elsewhere():
            check(cuda.cuCtxSetCurrent(mine))
            check(cuda.cuStreamSynchronize_ptsz(None))
        check(cuda.cuMemFreeAsync_ptsz(c_uint64(alloc(64 * MIB)[1]), None))
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        print((used() - before) // MIB)
        check(cuda.cuStreamSynchronize_ptsz(None))
        print((used() - before) // MIB)
        other = made(cuda.cuCtxCreate_v2, 0, 0)
        check(cuda.cuCtxSetCurrent(mine))
        before = used()
        check(cuda.cuMemFreeAsync(c_uint64(alloc(64 * MIB)[1]), None))
        check(cuda.cuCtxSetCurrent(other))
        check(cuda.cuStreamSynchronize(None))
        print((used() - before) // MIB)
        check(cuda.cuCtxSetCurrent(mine))
        check(cuda.cuStreamSynchronize(None))
        print((used() - before) // MIB)
        check(cuda.cuCtxSetCurrent(other))
        stream = made(cuda.cuStreamCreate, 1)
        check(cuda.cuCtxSetCurrent(mine))
        check(free_async(alloc(64 * MIB)[1], stream))
        check(cuda.cuCtxSynchronize())
        print((used() - before) // MIB)
        check(cuda.cuCtxSetCurrent(other))
        check(cuda.cuCtxSynchronize())
        print((used() - before) // MIB)
        """,
    )
    assert out == ["64", "0"] * 3


def test_mem_1_what_was_freed_in_a_stream_stays_charged_if_that_is_destroyed_at_work(
    proxied: Proxied,
) -> None:
    """MEM-1: the driver lets go of stream and memory when the work has ended."""
    out = run(
        proxied,
        """
        module = made(cuda.cuModuleLoadData, PTX)
        work = made(cuda.cuModuleGetFunction, module, b'spin_1000000us')
        before = used()
        for busy in 1, 0:
            stream = made(cuda.cuStreamCreate, 1)
            address = alloc(64 * MIB)[1]
            if busy:
                check(cuda.cuLaunchKernel(work, 1, 1, 1, 1, 1, 1, 0, stream, None, None))
            check(free_async(address, stream))
            check(cuda.cuStreamDestroy_v2(stream))
            print((used() - before) // MIB)
            check(cuda.cuCtxSynchronize())
            print((used() - before) // MIB)
        """,
    )
    assert out == ["64", "0", "0", "0"]


def test_mem_6_linear_memory_freed_in_a_finished_stream_is_no_reason_to_refuse(
    proxied: Proxied,
) -> None:
    """MEM-6: whatever the program waited with; unfinished work keeps its memory."""
    out = run(
        proxied,
        """
        stream, event = made(cuda.cuStreamCreate, 0), made(cuda.cuEventCreate, 0)
        module = made(cuda.cuModuleLoadData, PTX)
        work = made(cuda.cuModuleGetFunction, module, b'spin_1000000us')
        most = left() // MIB * MIB
        status, address = alloc(most)
        check(cuda.cuLaunchKernel(work, 1, 1, 1, 1, 1, 1, 0, stream, None, None))
        check(free_async(address, stream))
        check(cuda.cuEventRecord(event, stream))
        show(status, alloc(most)[0])
        check(cuda.cuEventSynchronize(event))
        status, address = alloc(most)
        show(status, drift())
        check(free(address))
        """,
    )
    assert out == ["0 2", "0 0"]
