"""Memory isolation through the libcuda proxy, held against what the simulated driver took."""

from __future__ import annotations

import signal
import time

import pytest

from lab.driver.cuda_proxied import CAP, CONTEXT, MIB, Proxied

pytestmark = pytest.mark.integration


def _until(condition: object, seconds: float = 5.0) -> float:
    """Seconds until the condition held."""
    begin = time.monotonic()
    assert callable(condition)
    while not condition():
        assert time.monotonic() - begin < seconds
        time.sleep(0.02)
    return time.monotonic() - begin


def test_mem_4_cap_and_use_are_what_the_program_sees(proxied: Proxied) -> None:
    """MEM-4, ENV-8: 6 of 15 of 15,109 MiB are 6,337,173,913 bytes, on each GPU by itself."""
    outcome = proxied.check(
        """
        total = c_size_t()
        context(1)
        for device in (0, 1):
            check(cuda.cuDeviceTotalMem_v2(byref(total), device))
            show(total.value)
        check(alloc(100 * MIB)[0])
        show(memory()[1], memory()[1] - left(), used(0), used(1))
        """
    )
    use = CONTEXT + 100 * MIB
    rest = (CAP - use) % (2 * MIB)  # in which nothing can be had
    assert outcome.out == ["6337173913", "6337173913", f"6337173913 {use + rest} 0 {use}"]


def test_mem_2_the_last_byte_under_the_cap_can_be_had_in_spite_of_granularity(
    proxied: Proxied,
) -> None:
    """MEM-2: the cap is no multiple of 2 MiB, and what is shown as free is."""
    outcome = proxied.check(
        """
        context()
        available = left()
        show(alloc(available + 1)[0], left() == available)
        status, address = alloc(available)
        show(status, left(), alloc(1)[0], free(address), left() == available)
        """
    )
    assert outcome.out == ["2 True", "0 0 2 0 True"]
    assert "cap 6337173913 B (6043.6 MiB), used 110100480 B (105.0 MiB), asked" in outcome.log


GROW = {
    "linear memory": "check(alloc(5 * MIB + 1)[0])",
    "pitched memory": "check(cuda.cuMemAllocPitch_v2(byref(c_uint64()), byref(c_size_t()), "
    "c_size_t(1000), c_size_t(5000), 4))",
    "an array": "check(cuda.cuArray3DCreate_v2(byref(c_void_p()), descriptor(1000, 1000)))",
    "a layered array": "check(cuda.cuArray3DCreate_v2(byref(c_void_p()), "
    "descriptor(300, 300, 7, 1)))",
    "a mipmapped array": "check(cuda.cuMipmappedArrayCreate(byref(c_void_p()), "
    "descriptor(1024, 1024), 8))",
    "a context": "check(cuda.cuCtxCreate_v2(byref(c_void_p()), 0, 0))",
    "a primary context": "check(cuda.cuDevicePrimaryCtxRetain(byref(c_void_p()), 0))",
}


@pytest.mark.parametrize("what", GROW)
def test_mem_1_the_charge_covers_what_the_driver_took_and_little_more(
    proxied: Proxied, what: str
) -> None:
    """MEM-1: against the driver's own free memory; at most its granularity apart."""
    outcome = proxied.check(
        f"""
        made = context()
        before, taken = used(), truth()
        {GROW[what]}
        show(used() - before, truth() - taken)
        check(cuda.cuCtxSetCurrent(made))
        check(cuda.cuCtxDestroy_v2(made))
        """
    )
    charged, taken = map(int, outcome.out[0].split())
    assert taken > 0
    assert 0 <= charged - taken <= 2 * MIB


def test_mem_1_sparse_and_deferred_arrays_are_free(proxied: Proxied) -> None:
    """MEM-1: what is mapped into them later is charged when it is created."""
    outcome = proxied.check(
        """
        context()
        before = used()
        check(cuda.cuArray3DCreate_v2(byref(c_void_p()), descriptor(1024, 1024, 0, 0x80)))
        show(used() - before)
        """
    )
    assert outcome.out == ["0"]


def test_mem_1_stack_heap_and_printf_limits_are_charged_as_they_grow(proxied: Proxied) -> None:
    """MEM-1: growth of local memory is bytes x threads per SM x SMs of a T4.

    A lower stack limit leaves the buffer as it is; heap and printf buffer can be made smaller only
    while there are none.
    """
    outcome = proxied.check(
        """
        made = context()
        before = used()
        setting = lambda limit, value: cuda.cuCtxSetLimit(limit, c_size_t(value))
        for limit, value in ((0, 2048), (0, 4096), (0, 1024), (2, 72 * MIB), (1, 3 * MIB),
                             (2, 8 * MIB)):
            check(setting(limit, value))
            show(used() - before)
        show(setting(0, 1 << 20), setting(2, 1 << 40), used() - before)
        check(cuda.cuCtxDestroy_v2(made))
        show(used())
        """
    )
    threads, heap, printf = 1024 * 40, 64 * MIB, 2 * MIB
    stack = 3072 * threads
    figures = [1024 * threads, stack, stack, stack + heap, stack + heap + printf, stack + printf]
    assert outcome.out == [*map(str, figures), f"2 2 {stack + printf}", "0"]


# Pending launches, levels of synchronisation, bytes for each block.
@pytest.mark.parametrize(("limit", "value"), [(4, 131_072), (4, 5000), (3, 5), (10, 1 << 18)])
def test_mem_1_what_a_limit_reserves_is_charged_until_the_context_goes(
    proxied: Proxied, limit: int, value: int
) -> None:
    """MEM-1: a limit that is lowered gives nothing back."""
    outcome = proxied.check(
        f"""
        made = context()
        before, taken = used(), truth()
        check(cuda.cuCtxSetLimit({limit}, c_size_t({value})))
        more = truth() - taken
        show(more > 0, more <= used() - before <= 2 * more + 2 * MIB)
        check(cuda.cuCtxSetLimit({limit}, c_size_t(1)))
        show(used() - before >= truth() - taken == more)
        check(cuda.cuCtxDestroy_v2(made))
        show(used())
        """
    )
    assert outcome.out == ["True True", "True", "0"]


@pytest.mark.parametrize("limit", [3, 4, 10])
def test_mem_2_a_limit_that_would_reserve_more_than_fits_is_refused(
    proxied: Proxied, limit: int
) -> None:
    """MEM-2: as the driver does where the GPU has no memory left, which the limit survives."""
    outcome = proxied.check(
        f"""
        context()
        was, now = c_size_t(), c_size_t()
        check(cuda.cuCtxGetLimit(byref(was), {limit}))
        status, address = alloc(left() - 4 * MIB)
        before, taken = used(), truth()
        for value in (20, 1 << 20, (1 << 64) - 1):
            if {limit} == 3 or value > 20:
                show(cuda.cuCtxSetLimit({limit}, c_size_t(value)))
        check(cuda.cuCtxGetLimit(byref(now), {limit}))
        show(now.value == was.value, used() - before, truth() - taken)
        """
    )
    assert set(outcome.out[:-1]) == {"2"}
    assert outcome.out[-1] == "True 0 0"


def test_mem_1_a_pool_of_which_the_driver_says_nothing_stays_charged(proxied: Proxied) -> None:
    """MEM-1: after an error that ends a context, the driver has it until the process ends."""
    outcome = proxied.check(
        """
        from pathlib import Path
        from cgpu_sim import Fault, inject
        from lab.calls.cuda_kind_calls import alloc_async, free_async
        context()
        base = used()
        status, address = alloc_async(64 * MIB)
        silent = Fault("cuMemPoolGetAttribute", result=700, repeat=True)
        inject(Path(os.environ["CGPU_SIM_MACHINE"]), silent)
        check(free_async(address))
        check(cuda.cuCtxSynchronize())
        show(status, (used() - base) // MIB)
        """
    )
    assert outcome.out == ["0 64"]


def test_limits_that_take_no_memory_and_unknown_ones_are_the_drivers_business(
    proxied: Proxied,
) -> None:
    """Hints and a flag pass; what the driver does not support it refuses, whatever the cap."""
    outcome = proxied.check(
        """
        context()
        check(alloc(left())[0])
        show(*(cuda.cuCtxSetLimit(limit, c_size_t(1 << 40)) for limit in (5, 6, 9)))
        show(*(cuda.cuCtxSetLimit(limit, c_size_t(1 << 40)) for limit in (7, 8, 11, -1)))
        """
    )
    assert outcome.out == ["0 0 0", "215 215 1 1"]


def test_mem_7_a_process_killed_by_a_signal_gives_back_its_charge(proxied: Proxied) -> None:
    """MEM-7: within 1 s, without anyone's help."""
    process = proxied.start(
        "context()\ncheck(alloc(1000 * MIB)[0])\nshow(used())\nsys.stdin.read()"
    )
    assert process.stdout is not None
    assert int(process.stdout.readline()) == CONTEXT + 1000 * MIB
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=10)
    assert _until(lambda: proxied.base.used() == 0) < 1.0
    process.communicate()


def test_mem_6_racing_processes_take_the_cap_to_the_last_piece_and_no_more(
    proxied: Proxied,
) -> None:
    """MEM-6: what all of them got is what fits; nobody was refused falsely."""
    processes = [
        proxied.start(
            """
            context()
            show("ready")
            sys.stdin.readline()
            count = 0
            while alloc(2 * MIB)[0] == 0:
                count += 1
            show(count)
            sys.stdin.read()
            """,
            CGPU_LOG="off",
        )
        for _ in range(8)
    ]
    pieces = 0
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        assert process.stdout is not None
        pieces += int(process.stdout.readline())
    fit = (CAP - len(processes) * CONTEXT) // (2 * MIB)
    used = proxied.base.used()
    for process in processes:
        process.communicate(timeout=60)
    assert pieces == fit
    assert used == len(processes) * CONTEXT + fit * 2 * MIB


def test_mem_6_threads_that_allocate_and_free_leave_an_exact_account(proxied: Proxied) -> None:
    """MEM-6: threads of one process, each with the same context."""
    outcome = proxied.check(
        """
        import threading
        made = context()
        before = used()
        def work(seed):
            check(cuda.cuCtxSetCurrent(made))
            held = []
            for step in range(1500):
                if held and (step * seed) % 3 == 0:
                    check(free(held.pop()))
                else:
                    status, address = alloc(1 + (step * 7919 * seed) % (3 * MIB))
                    check(status)
                    held.append(address)
            for address in held:
                check(free(address))
        threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2, 3, 5)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        show(used() - before)
        """
    )
    assert outcome.out == ["0"]


def test_mem_3_managed_memory_does_not_exist(proxied: Proxied) -> None:
    """MEM-3: the attribute reads 0, and the allocation that a program tries anyway is refused."""
    outcome = proxied.check(
        """
        context()
        value = c_int(7)
        check(cuda.cuDeviceGetAttribute(byref(value), 83, 0))
        show(value.value, cuda.cuMemAllocManaged(byref(c_uint64()), c_size_t(MIB), 1))
        """
    )
    assert outcome.out == ["0 801"]


def test_a_device_that_does_not_exist_gets_the_drivers_own_answer(proxied: Proxied) -> None:
    outcome = proxied.check(
        """
        check(cuda.cuInit(0))
        made = c_void_p()
        for device in (-1, 2, 99):
            print(cuda.cuCtxCreate_v2(byref(made), 0, device), end=" ")
            print(cuda.cuDevicePrimaryCtxRetain(byref(made), device), used())
        """
    )
    assert (outcome.out, outcome.log) == (["101 101 0"] * 3, "")
