"""What contexts cost, and what goes with them, on a driver that the test controls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab.driver.cuda_base import MIB, lay_out, stub_gpus
from lab.driver.cuda_base import STUB_CAP as CAP
from lab.driver.cuda_base import STUB_CONTEXT as CONTEXT

if TYPE_CHECKING:
    from pathlib import Path

    from lab.driver.cuda_base import Base
    from lab.driver.cuda_proxied import Proxied

pytestmark = pytest.mark.integration


def test_a_context_made_around_the_hooks_is_charged_when_it_is_first_used(base: Base) -> None:
    outcome = base.check(
        """
        check(cuda.cuInit(0))
        real = ctypes.CDLL(os.path.join(sys.argv[1], "real/libcuda.so.1"))
        made = c_void_p()
        check(real.cuCtxCreate_v2(byref(made), 0, 0))
        show(alloc(MIB)[0], left())
        check(cuda.cuCtxDestroy_v2(made))
        context()
        show(left())
        """,
        str(base.path),
    )
    assert outcome.out == [f"0 {CAP - CONTEXT - 2 * MIB}", f"{CAP - CONTEXT}"]


def test_destroying_a_context_gives_back_all_it_owned(base: Base) -> None:
    outcome = base.check(
        """
        first = context()
        for _ in range(20):
            check(alloc(MIB)[0])
        second = c_void_p()
        check(cuda.cuCtxCreate_v3(byref(second), None, 0, 0, 0))
        check(alloc(2 * MIB)[0])
        show(left())
        check(cuda.cuCtxDestroy_v2(first))
        check(cuda.cuCtxSetCurrent(second))
        show(left())
        """
    )
    assert outcome.out == [str(CAP - 2 * CONTEXT - 22 * MIB), str(CAP - CONTEXT - 2 * MIB)]


def test_a_primary_context_costs_once_and_goes_with_its_last_reference(base: Base) -> None:
    outcome = base.check(
        """
        check(cuda.cuInit(0))
        handle = c_void_p()
        retain = lambda: check(cuda.cuDevicePrimaryCtxRetain(byref(handle), 0))
        for _ in range(2):
            retain(); show(used())
        check(cuda.cuCtxSetCurrent(handle)); check(alloc(6 * MIB)[0]); show(used())
        check(cuda.cuDevicePrimaryCtxRelease_v2(0)); show(used())
        check(cuda.cuDevicePrimaryCtxRelease_v2(0)); show(used())
        retain(); check(alloc(MIB)[0]); show(used())
        check(cuda.cuDevicePrimaryCtxReset_v2(0)); show(used())
        """
    )
    assert outcome.out == [str(n * MIB) for n in (10, 10, 16, 16, 0, 12, 0)]


def test_a_second_reference_to_a_primary_context_needs_no_room(base: Base) -> None:
    """MEM-6: no false refusal."""
    outcome = base.check(
        """
        check(cuda.cuInit(0))
        handle = c_void_p()
        check(cuda.cuDevicePrimaryCtxRetain(byref(handle), 0))
        check(cuda.cuCtxSetCurrent(handle))
        check(alloc(left())[0])
        show(cuda.cuDevicePrimaryCtxRetain(byref(handle), 0))
        """
    )
    assert outcome.out == ["0"]


def test_a_reset_gives_everything_back_even_if_the_context_is_active_again(base: Base) -> None:
    outcome = base.check(
        """
        check(cuda.cuInit(0))
        handle = c_void_p()
        check(cuda.cuDevicePrimaryCtxRetain(byref(handle), 0))
        check(cuda.cuCtxSetCurrent(handle))
        check(alloc(MIB)[0])
        set_fault("inactive after reset")
        check(cuda.cuDevicePrimaryCtxReset_v2(0))
        show(used())
        check(alloc(MIB)[0])
        show(used())
        """
    )
    assert outcome.out == ["0", str(CONTEXT + 2 * MIB)]


def test_mem_1_a_context_of_which_the_driver_says_nothing_stays_charged(proxied: Proxied) -> None:
    """MEM-1: CUDA documents that the question may return the error of an earlier launch."""
    outcome = proxied.check(
        """
        from pathlib import Path
        from cgpu_sim import Fault, inject
        check(cuda.cuInit(0))
        handle = c_void_p()
        check(cuda.cuDevicePrimaryCtxRetain(byref(handle), 0))
        check(cuda.cuCtxSetCurrent(handle))
        check(alloc(64 * MIB)[0])
        silent = Fault("cuDevicePrimaryCtxGetState", result=700, repeat=True)
        inject(Path(os.environ["CGPU_SIM_MACHINE"]), silent)
        check(cuda.cuDevicePrimaryCtxRetain(byref(handle), 0))
        show(truth() == used())
        check(cuda.cuDevicePrimaryCtxRelease_v2(0))
        show(truth() == used())
        """
    )
    assert outcome.out == ["True", "True"]


def test_a_context_at_the_address_of_a_dead_one_is_charged_to_its_own_gpu(base: Base) -> None:
    """What a thread remembers about a context does not outlive it."""
    outcome = base.check(
        """
        first = context(0)
        check(alloc(MIB)[0])
        check(cuda.cuCtxDestroy_v2(first))
        second = c_void_p()
        check(cuda.cuCtxCreate_v2(byref(second), 0, 1))
        check(alloc(4 * MIB)[0])
        show(first.value == second.value, used(0), used(1))
        """
    )
    assert outcome.out == [f"True 0 {CONTEXT + 4 * MIB}"]


def test_a_green_context_costs_6_mib_and_its_primary_context(base: Base) -> None:
    outcome = base.check(
        """
        check(cuda.cuInit(0))
        green, handle = c_void_p(), c_void_p()
        check(cuda.cuGreenCtxCreate(byref(green), None, 0, 1)); show(used())
        check(cuda.cuCtxFromGreenCtx(byref(handle), green)); show(used())
        check(cuda.cuCtxSetCurrent(handle)); check(alloc(4 * MIB)[0]); show(used())
        check(cuda.cuGreenCtxDestroy(green)); show(used())
        """
    )
    assert outcome.out == [str(n * MIB) for n in (16, 16, 20, 0)]


def test_what_a_green_context_took_stays_until_its_primary_context_goes(base: Base) -> None:
    """The driver keeps it, and takes as much again for the next one."""
    outcome = base.check(
        """
        check(cuda.cuInit(0))
        primary, green = c_void_p(), c_void_p()
        check(cuda.cuDevicePrimaryCtxRetain(byref(primary), 0))
        for _ in range(2):
            check(cuda.cuGreenCtxCreate(byref(green), None, 0, 1)); show(used())
            check(cuda.cuGreenCtxDestroy(green)); show(used())
        check(cuda.cuDevicePrimaryCtxRelease_v2(0)); show(used())
        """
    )
    assert outcome.out == [str(n * MIB) for n in (16, 16, 22, 22, 0)]


def test_destroying_a_context_costs_no_more_than_freeing_what_it_owns(
    stub: Path, tmp_path: Path
) -> None:
    """One pass over what the process holds, however much of it is the context's."""
    outcome = lay_out(tmp_path / "base", stub, stub_gpus(8 << 30)).check(
        """
        import time
        def filled():
            return [alloc(256) for _ in range(200_000)]
        def cost(call):
            start = time.process_time()
            call()
            return time.process_time() - start
        made = context()
        empty = left()
        held = filled()
        show({status for status, _ in held})
        one_by_one = cost(lambda: [free(address) for _, address in held])
        show(left() == empty, {status for status, _ in filled()})
        show(cost(lambda: check(cuda.cuCtxDestroy_v2(made))) < 3 * one_by_one)
        """
    )
    assert outcome.out == ["{0}", "True {0}", "True"]
