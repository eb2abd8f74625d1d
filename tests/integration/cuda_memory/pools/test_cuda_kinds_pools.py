"""Pools through the libcuda proxy: reserved memory is charged, to the byte that the driver took."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cgpu_sim import Fault, inject
from lab.driver.code_images import START, run

if TYPE_CHECKING:
    from lab.driver.cuda_proxied import Proxied

pytestmark = pytest.mark.integration


def test_mem_1_a_pool_is_charged_by_what_it_has_reserved(proxied: Proxied) -> None:
    """MEM-1: reserved, not used: the driver reserves 32 MiB for one byte."""
    out = run(
        proxied,
        """
        for size in (1, 4 * MIB, 100 * MIB, 3 * MIB):
            check(alloc_async(size)[0])
            show((used() - base) // MIB, drift())
        """,
    )
    assert out == ["32 0", "32 0", "106 0", "138 0"]


def test_mem_1_freed_memory_stays_charged_until_synchronisation(proxied: Proxied) -> None:
    """MEM-1: with the default threshold of 0 a synchronisation gives everything back."""
    syncs = (
        "cuda.cuCtxSynchronize()",
        "cuda.cuStreamSynchronize(None)",
        "cuda.cuStreamSynchronize_ptsz(None)",
        "cuda.cuEventSynchronize(event)",
    )
    program = (
        "event = made(cuda.cuEventCreate, 0)\nmodule = made(cuda.cuModuleLoadData, PTX)\n"
        "work = made(cuda.cuModuleGetFunction, module, b'spin_20000us')\nbase = used()\n"
    )
    for sync in syncs:
        program += (
            "status, address = alloc_async(64 * MIB)\ncheck(free_async(address))\n"
            "check(cuda.cuLaunchKernel(work, 1, 1, 1, 1, 1, 1, 0, None, None, None))\n"
            "check(cuda.cuEventRecord(event, None))\n"
            f"show((used() - base) // MIB, drift())\ncheck({sync})\nshow(used() - base, drift())\n"
        )
    assert run(proxied, program) == ["64 0", "0 0"] * len(syncs)


def test_mem_1_a_threshold_keeps_the_reserve_charged_until_it_is_trimmed(proxied: Proxied) -> None:
    """MEM-1: frameworks set the threshold to the maximum."""
    out = run(
        proxied,
        """
        pool = make_pool(threshold=2**64 - 1)
        status, address = alloc_async(100 * MIB, pool)
        check(free_async(address))
        check(cuda.cuCtxSynchronize())
        show((used() - base) // MIB, drift())
        check(cuda.cuMemPoolTrimTo(pool, c_size_t(30 * MIB)))
        show((used() - base) // MIB, drift())
        set_threshold(pool, 0)
        check(cuda.cuCtxSynchronize())
        show(used() - base, drift())
        """,
    )
    assert out == ["100 0", "30 0", "0 0"]


def test_mem_2_the_last_byte_can_be_had_from_a_pool_and_no_more(proxied: Proxied) -> None:
    """MEM-2: neither the driver's large pieces nor its granularity refuse what fits."""
    out = run(
        proxied,
        """
        rest = left()
        show(alloc_async(rest + 1)[0], left() == rest, drift())
        status, address = alloc_async(rest)
        show(status, left(), alloc_async(1)[0] in (0, 2), alloc(1)[0])
        check(free_async(address))
        check(cuda.cuCtxSynchronize())
        check(alloc_async(rest - 3 * MIB)[0])
        show(alloc_async(MIB)[0], drift(), left() < 3 * MIB)
        """,
    )
    assert out == ["2 True 0", "0 0 True 2", "0 0 True"]


def test_mem_2_idle_reserves_are_let_go_before_anything_is_refused(proxied: Proxied) -> None:
    """MEM-6: no false refusal: what pools only keep for reuse is released for any other request."""
    out = run(
        proxied,
        """
        pool = make_pool(threshold=2**64 - 1)
        status, address = alloc_async(4000 * MIB, pool)
        check(free_async(address))
        show(alloc(3000 * MIB)[0], drift())
        status, address = alloc_async(2000 * MIB, pool)
        check(free_async(address))
        show(physical(2000 * MIB)[0], drift())
        show(alloc_async(900 * MIB)[0], alloc_async(900 * MIB, pool)[0], drift())
        """,
    )
    assert out == ["0 0", "0 0", "0 2 0"]


def test_mem_1_a_destroyed_pool_is_charged_until_the_last_of_its_memory_is_freed(
    proxied: Proxied,
) -> None:
    """MEM-1: and no allocation comes from it any more."""
    out = run(
        proxied,
        """
        empty = make_pool()
        check(cuda.cuMemPoolDestroy(empty))
        pool = make_pool()
        check(cuda.cuDeviceSetMemPool(0, pool))
        status, address = alloc_async(64 * MIB)
        show(status, (used() - base) // MIB, drift())
        check(cuda.cuMemPoolDestroy(pool))
        current = made(cuda.cuDeviceGetMemPool, 0)
        show((used() - base) // MIB, drift(), current.value == default_pool().value)
        show(alloc_async(MIB, pool)[0], cuda.cuMemPoolDestroy(pool))
        check(free_async(address))
        check(cuda.cuCtxSynchronize())
        show(used() - base, drift(), cuda.cuMemPoolDestroy(default_pool()))
        """,
    )
    assert out == ["0 64 0", "64 0 True", "1 1", "0 0 1"]


def test_mem_1_each_pool_is_charged_to_its_own_gpu(proxied: Proxied) -> None:
    """MEM-1: pools on both GPUs of one process."""
    out = run(
        proxied,
        """
        pool = make_pool(device=1)
        check(alloc_async(64 * MIB, pool)[0])
        check(alloc_async(96 * MIB)[0])
        show((used(0) - base) // MIB, used(1) // MIB, drift())
        other = made(cuda.cuCtxCreate_v2, 0, 1)
        before = used(1)
        check(alloc_async(40 * MIB, default_pool(1))[0])
        show((used(1) - before) // MIB, drift(1))
        """,
    )
    assert out == ["96 64 0", "40 0"]


def test_mem_1_pools_of_a_locality_domain_are_charged(proxied: Proxied) -> None:
    """MEM-1: also after the program has asked for its own. Unknown locations are refused."""
    out = run(
        proxied,
        """
        domain = (c_int * 2)(LOCALITY_DOMAIN, 0)
        before = used()
        for get in (cuda.cuMemGetDefaultMemPool, cuda.cuMemGetMemPool):
            check(alloc_async(20 * MIB, made(get, domain, PINNED))[0])
        show(alloc_async(20 * MIB)[0], (used() - before) // MIB, drift())
        pool = made(cuda.cuMemPoolCreate, pool_properties(LOCALITY_DOMAIN))
        show(alloc_async(20 * MIB, pool)[0], (used() - before) // MIB, drift())
        out = c_void_p()
        show(cuda.cuMemPoolCreate(byref(out), pool_properties(7)))
        show(cuda.cuMemGetDefaultMemPool(byref(out), (c_int * 2)(7, 0), PINNED))
        """,
    )
    assert out == ["0 64 0", "0 96 0", "801", "801"]


def test_mem_3_managed_pools_are_refused(proxied: Proxied) -> None:
    """MEM-3: with one log line."""
    outcome = proxied.check(
        START
        + """
out = c_void_p()
location = (c_int * 2)(1, 0)
show(cuda.cuMemPoolCreate(byref(out), pool_properties(kind=MANAGED)))
show(cuda.cuMemGetDefaultMemPool(byref(out), location, MANAGED))
show(cuda.cuMemGetMemPool(byref(out), location, MANAGED))
"""
    )
    assert outcome.out == ["801"] * 3
    assert outcome.log == "cgpu: managed memory is not available here, refused: cuMemPoolCreate\n"


def test_a_pool_that_goes_with_its_last_context_is_given_back(proxied: Proxied) -> None:
    """MEM-1: what the driver releases at the end of a context is not charged any more."""
    out = run(
        proxied,
        """
        pool = make_pool(threshold=2**64 - 1)
        status, address = alloc_async(64 * MIB, pool)
        check(free_async(address))
        other = made(cuda.cuCtxCreate_v2, 0, 1)
        first = c_void_p()
        check(cuda.cuCtxPopCurrent_v2(byref(first)))
        check(cuda.cuCtxPopCurrent_v2(byref(first)))
        check(cuda.cuCtxDestroy_v2(first))
        show(used(0))
        """,
    )
    assert out == ["0"]


def test_the_version_of_the_driver_is_asked_once(proxied: Proxied) -> None:
    """Not at each allocation: here the second question ends the program."""
    inject(proxied.machine, Fault("cuDriverGetVersion", nth=2, kill=True))
    out = run(
        proxied,
        """
        has_pools = c_int()
        for _ in range(100):
            status, address = alloc_async(MIB)
            check(status)
            check(free_async(address))
        check(cuda.cuDeviceGetAttribute(byref(has_pools), 115, 0))
        show(has_pools.value)
        """,
    )
    assert out == ["1"]
