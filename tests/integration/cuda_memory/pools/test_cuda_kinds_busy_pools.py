"""Pools whose memory was freed in streams that have not got there, through the libcuda proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab.driver.code_images import run

if TYPE_CHECKING:
    from lab.driver.cuda_proxied import Proxied

pytestmark = pytest.mark.integration


def test_a_refused_allocation_does_not_wait_for_a_stream_that_waits_for_its_thread(
    proxied: Proxied,
) -> None:
    """What the driver took beyond the cap is charged until the stream gets there, and no longer."""
    out = run(
        proxied,
        """
        import struct, threading
        properties = pool_properties()
        properties[4:8] = struct.pack("<i", POSIX_FD)
        pool = made(cuda.cuMemPoolCreate, properties)
        stream = made(cuda.cuStreamCreate, 1)
        over, gave_up = threading.Event(), []
        host = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: gave_up.append(not over.wait(15)))
        check(alloc((left() - 2 * MIB) // (2 * MIB) * 2 * MIB)[0])
        check(alloc_async(MIB, pool, stream)[0])
        if left() > 0:
            check(alloc(left())[0])
        full = used()
        check(cuda.cuLaunchHostFunc(stream, host, None))
        show(alloc_async(MIB, pool, stream)[0], gave_up, drift() <= 0)
        over.set()
        check(cuda.cuStreamSynchronize(stream))
        show(used() - full, drift())
        """,
    )
    assert out == ["2 [] True", "0 0"]
