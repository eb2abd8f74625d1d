"""Memory of the simulated driver is counted as a GPU's is."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.driver.sim_cuda import Driver, Gpu, make_driver

pytestmark = pytest.mark.integration


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return make_driver(tmp_path / "driver")


def test_a_context_costs_memory_and_gives_it_back(driver: Driver) -> None:
    out = driver.check("""
        start()
        show(used_mib())
        other = made(cuda.cuCtxCreate_v2, 0, 0)
        show(used_mib())
        check(cuda.cuCtxDestroy_v2(other))
        show(used_mib())
    """)
    assert out == ["105.0", "210.0", "105.0"]


def test_primary_contexts_are_counted_references(driver: Driver) -> None:
    out = driver.check("""
        context = start()
        again = made(cuda.cuDevicePrimaryCtxRetain, 0)
        show(again.value == context.value)
        alloc(10 * MIB)
        check(cuda.cuDevicePrimaryCtxRelease_v2(0))
        show(used_mib())
        check(cuda.cuDevicePrimaryCtxRelease_v2(0))
        show(cuda.cuDevicePrimaryCtxRelease_v2(0), cuda.cuCtxSynchronize())
        start()
        show(used_mib())
    """)
    assert out == ["True", "115.0", "201 709", "105.0"]


def test_reset_frees_all_that_is_in_the_primary_context(driver: Driver) -> None:
    out = driver.check("""
        start(), start()
        alloc(10 * MIB), kernel(), made(cuda.cuStreamCreate, 0)
        check(cuda.cuDevicePrimaryCtxReset_v2(0))
        made(cuda.cuCtxCreate_v2, 0, 0)
        show(used_mib())
    """)
    assert out == ["105.0"]


def test_large_allocations_round_up_and_small_ones_share(driver: Driver) -> None:
    out = driver.check("""
        start()
        base = used_mib()
        large = alloc(MIB + 1)[1]
        show(used_mib() - base)
        small = [alloc(512 * 1024)[1] for _ in range(4)]
        show(used_mib() - base)
        small.append(alloc(1)[1])
        show(used_mib() - base)
        for address in [large, *small]:
            check(free(address))
        show(used_mib() - base, free(large))
    """)
    assert out == ["2.0", "4.0", "6.0", "0.0 1"]


def test_a_request_over_the_gpu_is_refused_and_changes_nothing(driver: Driver) -> None:
    out = driver.check("""
        start()
        base = used()
        show(alloc(16 << 30)[0], alloc((1 << 64) - 1)[0], alloc(0)[0], used() == base)
        show(alloc((15109 - 105) * MIB)[0], alloc(1)[0])
    """)
    assert out == ["2 2 1 True", "0 2"]


def test_ten_thousand_live_allocations_are_counted(driver: Driver) -> None:
    out = driver.check("""
        start()
        base = used_mib()
        live = [alloc(1024)[1] for _ in range(10000)]
        show(len(set(live)), used_mib() - base)
        for address in live:
            check(free(address))
        show(used_mib() - base)
    """)
    assert out == ["10000 10.0", "0.0"]


def test_bytes_go_to_the_device_and_back(driver: Driver) -> None:
    out = driver.check("""
        start()
        address = alloc(4096)[1]
        text = b"some bytes that travel"
        check(cuda.cuMemcpyHtoD_v2(c_uint64(address), text, c_size_t(len(text))))
        check(cuda.cuMemsetD8_v2(c_uint64(address + 5), 0x2d, c_size_t(5)))
        back = ctypes.create_string_buffer(len(text))
        check(cuda.cuMemcpyDtoH_v2(back, c_uint64(address), c_size_t(len(text))))
        show(back.raw.decode())
        show(cuda.cuMemcpyHtoD_v2(c_uint64(address + 4090), text, c_size_t(len(text))))
    """)
    assert out == ["some ----- that travel", "1"]


def test_calls_of_the_first_version_use_addresses_of_32_bits(driver: Driver) -> None:
    out = driver.check("""
        start()
        base = used_mib()
        address = made(cuda.cuMemAlloc, 3 * MIB, kind=c_uint)
        check(cuda.cuMemcpyHtoD(address, b"abcd", 4))
        back = ctypes.create_string_buffer(4)
        check(cuda.cuMemcpyDtoH(back, address, 4))
        show(back.raw, used_mib() - base)
        check(cuda.cuMemFree(address))
        show(used_mib() - base)
    """)
    assert out == ["b'abcd' 4.0", "0.0"]


def test_local_memory_grows_with_the_stack_limit_and_never_shrinks(driver: Driver) -> None:
    out = driver.check("""
        start()
        base = used()
        check(cuda.cuCtxSetLimit(0, c_size_t(65536)))
        grown = used() - base
        show(grown == (65536 + 512 - 1024 - 512) * 40 * 1024)
        check(cuda.cuCtxSetLimit(0, c_size_t(1024)))
        show(used() - base == grown, cuda.cuCtxSetLimit(0, c_size_t(512 * 1024)))
    """)
    assert out[0] == "True"
    assert out[1].startswith("True")


def test_arrays_cost_whole_blocks_and_mipmaps_all_their_levels(driver: Driver) -> None:
    out = driver.check("""
        start()
        base = used_mib()
        describe = lambda w, h, flags=0: (c_uint64 * 5)(w, h, 0, 4 << 32 | 0x20, flags)
        array = made(cuda.cuArray3DCreate_v2, describe(1000, 1000))
        show(used_mib() - base)
        mipmap = made(cuda.cuMipmappedArrayCreate, describe(1024, 1024), 11)
        show(used_mib() - base)
        level = made(cuda.cuMipmappedArrayGetLevel, mipmap, 10)
        size = (c_uint64 * 4)()
        show(cuda.cuArrayGetMemoryRequirements(size, array, 0))
        late = made(cuda.cuArray3DCreate_v2, describe(1000, 1000, 0x80))
        show(cuda.cuArrayGetMemoryRequirements(size, late, 0), size[0] >= 16000000)
        check(cuda.cuArrayDestroy(array)), check(cuda.cuMipmappedArrayDestroy(mipmap))
        show(used_mib() - base)
    """)
    assert out == ["16.0", "38.0", "1", "0 True", "0.0"]


def test_a_pool_reserves_chunks_and_gives_back_at_synchronisation(driver: Driver) -> None:
    out = driver.check("""
        start()
        base = used_mib()
        pool = made(cuda.cuDeviceGetDefaultMemPool, 0)
        address = made(cuda.cuMemAllocAsync, c_size_t(3 * MIB), None, kind=c_uint64)
        show(used_mib() - base)
        attribute = lambda n: made(lambda out: cuda.cuMemPoolGetAttribute(pool, n, out),
                                   kind=c_uint64).value / MIB
        show(attribute(5), attribute(7))
        check(cuda.cuMemFreeAsync(address, None))
        show(used_mib() - base, attribute(7))
        check(cuda.cuStreamSynchronize(None))
        show(used_mib() - base)
    """)
    assert out == ["32.0", "32.0 3.0", "32.0 0.0", "0.0"]


def test_a_pool_keeps_up_to_its_threshold_until_trimmed(driver: Driver) -> None:
    out = driver.check("""
        start()
        base = used_mib()
        pool = made(cuda.cuDeviceGetDefaultMemPool, 0)
        check(cuda.cuMemPoolSetAttribute(pool, 4, byref(c_uint64((1 << 64) - 1))))
        address = made(cuda.cuMemAllocAsync, c_size_t(50 * MIB), None, kind=c_uint64)
        check(cuda.cuMemFreeAsync(address, None)), check(cuda.cuCtxSynchronize())
        show(used_mib() - base)
        check(cuda.cuMemPoolTrimTo(pool, c_size_t(10 * MIB)))
        show(used_mib() - base)
    """)
    assert out == ["50.0", "10.0"]


def test_memory_freed_in_a_stream_is_that_streams_at_once_and_others_when_it_has_passed(
    driver: Driver,
) -> None:
    """It goes back to the GPU when a synchronisation has shown that nothing uses it."""
    out = driver.check("""
        import threading
        start()
        one, two = made(cuda.cuStreamCreate, 1), made(cuda.cuStreamCreate, 1)
        pool, go = made(cuda.cuDeviceGetDefaultMemPool, 0), threading.Event()
        host = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: go.wait(60) and None)
        take = lambda stream: made(cuda.cuMemAllocAsync, c_size_t(40 * MIB), stream, kind=c_uint64)
        attribute = lambda n: made(lambda out: cuda.cuMemPoolGetAttribute(pool, n, out),
                                   kind=c_uint64).value // MIB
        reserved_and_used = lambda: show(attribute(5), attribute(7))
        first = take(one)
        check(cuda.cuLaunchHostFunc(one, host, None))
        check(cuda.cuMemFreeAsync(first, one)), check(cuda.cuMemPoolTrimTo(pool, c_size_t(0)))
        reserved_and_used()
        again = take(one)
        reserved_and_used()
        other = take(two)
        check(cuda.cuMemFreeAsync(again, one)), check(cuda.cuStreamSynchronize(two))
        reserved_and_used()
        go.set()
        while cuda.cuStreamQuery(one) == 600:
            time.sleep(0.001)
        check(cuda.cuMemPoolTrimTo(pool, c_size_t(0)))
        reserved_and_used()
        third = take(two)
        reserved_and_used()
        check(cuda.cuMemFreeAsync(third, one)), check(cuda.cuMemFreeAsync(other, two))
        check(cuda.cuCtxSynchronize())
        reserved_and_used()
    """)
    assert out == ["40 0", "40 40", "80 40", "80 40", "80 80", "0 0"]


def test_an_event_that_has_passed_shows_what_is_free_when_it_is_synchronised(
    driver: Driver,
) -> None:
    """A query does not."""
    out = driver.check("""
        start()
        base, event = used_mib(), made(cuda.cuEventCreate, 0)
        address = made(cuda.cuMemAllocAsync, c_size_t(40 * MIB), None, kind=c_uint64)
        check(cuda.cuMemFreeAsync(address, None)), check(cuda.cuEventRecord(event, None))
        check(cuda.cuEventQuery(event))
        show(used_mib() - base)
        check(cuda.cuEventSynchronize(event))
        show(used_mib() - base)
    """)
    assert out == ["40.0", "0.0"]


def test_a_module_costs_memory_and_managed_memory_works(driver: Driver) -> None:
    out = driver.check("""
        start()
        base = used_mib()
        module = made(cuda.cuModuleLoadData, PTX)
        show(used_mib() - base)
        size = c_size_t()
        table = c_uint64()
        check(cuda.cuModuleGetGlobal_v2(byref(table), byref(size), module, b"table"))
        show(size.value, cuda.cuModuleGetFunction(byref(c_void_p()), module, b"absent"))
        check(cuda.cuModuleUnload(module))
        show(cuda.cuModuleLoadData(byref(c_void_p()), b"not an image" + bytes(64)))
        managed = made(cuda.cuMemAllocManaged, c_size_t(MIB), 1, kind=c_uint64)
        ctypes.memset(managed.value, 7, 10)
        show(used_mib() - base)
    """)
    assert out == ["2.0", "64 500", "200", "2.0"]


def test_reserved_memory_is_not_cuda_memory(tmp_path: Path) -> None:
    driver = make_driver(tmp_path / "driver", Gpu("A10", 1000, reserved_mib=200, context_mib=100))
    out = driver.check("""
        start()
        total = made(cuda.cuDeviceTotalMem_v2, 0, kind=c_size_t)
        show(total.value // MIB, alloc(702 * MIB)[0], alloc(700 * MIB)[0])
    """)
    assert out == ["800 2 0"]


def test_wishes_about_managed_memory_are_for_managed_memory_only(driver: Driver) -> None:
    out = driver.check("""
        start()
        managed = made(cuda.cuMemAllocManaged, c_size_t(MIB), 1, kind=c_uint64)
        linear = c_uint64(alloc(MIB)[1])
        for address in (managed, linear):
            show(cuda.cuMemPrefetchAsync(address, c_size_t(MIB), 0, None),
                 cuda.cuMemAdvise(address, c_size_t(MIB), 1, 0),
                 cuda.cuStreamAttachMemAsync(None, address, c_size_t(0), 1))
    """)
    assert out == ["0 0 0", "1 1 1"]
