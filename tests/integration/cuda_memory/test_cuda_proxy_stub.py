"""The libcuda proxy on a driver that fails on demand and knows more, or less, than this release."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab.driver.cuda_base import MIB, lay_out, stub_gpus
from lab.driver.cuda_base import STUB_CAP as CAP
from lab.driver.cuda_base import STUB_CONTEXT as CONTEXT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lab.driver.cuda_base import Base

pytestmark = pytest.mark.integration

PASS_UNKNOWN = 1


def test_mem_2_the_cap_is_exact_to_the_byte(base: Base) -> None:
    """MEM-2: what is left under the cap succeeds; one byte more is refused and charges nothing."""
    outcome = base.check(
        """
        context()
        available, total = memory()
        show(total, available)
        show(alloc(available + 1)[0], left() == available, cuda.stub_live())
        show(alloc(available)[0], left(), alloc(1)[0])
        """
    )
    assert outcome.out == [f"{CAP} {CAP - CONTEXT}", "2 True 0", "0 0 2"]


def test_mem_2_a_refusal_writes_one_line_with_cap_used_and_asked(base: Base) -> None:
    """MEM-2: one rate-limited line."""
    outcome = base.check(
        """
        context()
        for _ in range(50):
            show(alloc(1 << 40)[0])
        """
    )
    assert set(outcome.out) == {"2"}
    assert outcome.log == (
        f"cgpu: out of memory on GPU 0: cap {CAP} B (100.0 MiB), used {CONTEXT} B (10.0 MiB), "
        f"asked {1 << 40} B (1048576.0 MiB)\n"
    )


def test_the_log_can_be_switched_off(base: Base) -> None:
    outcome = base.check("context(); show(alloc(1 << 40)[0])", CGPU_LOG="off")
    assert (outcome.out, outcome.log) == (["2"], "")


def test_a_free_puts_back_exactly_what_was_charged(base: Base) -> None:
    """In blocks of 2 MiB, which driver says so or not."""
    outcome = base.check(
        """
        context()
        before = left()
        for size in (1, 511, 512, 513, MIB, MIB + 1, 3 * MIB):
            status, address = alloc(size)
            show(status, before - left())
            check(free(address))
            show(left() == before)
        """
    )
    sizes = [2 * MIB] * 6 + [4 * MIB]
    assert outcome.out == [line for size in sizes for line in (f"0 {size}", "True")]


def test_the_32_bit_entry_points_are_charged_and_freed_alike(base: Base) -> None:
    """MEM-1: v1 variants."""
    outcome = base.check(
        """
        context()
        before = left()
        address, available, total = c_uint(), c_uint(), c_uint()
        check(cuda.cuMemAlloc(byref(address), 2 * MIB))
        check(cuda.cuMemGetInfo(byref(available), byref(total)))
        show(before - left(), available.value == left(), total.value)
        check(cuda.cuDeviceTotalMem(byref(total), 0))
        show(total.value, cuda.cuMemAlloc(byref(address), 90 * MIB))
        check(cuda.cuMemFree(address))
        show(before - left())
        """
    )
    assert outcome.out == [f"{2 * MIB} True {CAP}", f"{CAP} 2", "0"]


def test_pitched_memory_is_charged_by_the_pitch_that_the_driver_chose(base: Base) -> None:
    """MEM-1: 3,000 rows of 513 bytes are 3,000 rows of 1,024; a pitch over the cap is undone."""
    outcome = base.check(
        """
        context()
        before = left()
        address, pitch = c_uint64(), c_size_t()
        ask = lambda rows: cuda.cuMemAllocPitch_v2(
            byref(address), byref(pitch), c_size_t(513), c_size_t(rows), 4)
        check(ask(3000))
        show(before - left())
        check(free(address.value))
        show(before - left(), ask(170 * 1024), cuda.stub_live(), before - left())
        overflowing = cuda.cuMemAllocPitch_v2(
            byref(address), byref(pitch), c_size_t(512), c_size_t(1 << 55), 4)
        show(overflowing, before - left())
        """
    )
    assert outcome.out == [str(4 * MIB), "0 2 0 0", "2 0"]


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("cuMemAlloc_v2", "alloc(MIB)[0]"),
        ("cuCtxCreate_v2", "cuda.cuCtxCreate_v2(byref(c_void_p()), 0, 0)"),
        ("cuCtxCreate_v3", "cuda.cuCtxCreate_v3(byref(c_void_p()), None, 0, 0, 0)"),
        ("cuCtxCreate_v4", "cuda.cuCtxCreate_v4(byref(c_void_p()), None, 0, 0)"),
        ("cuDevicePrimaryCtxRetain", "cuda.cuDevicePrimaryCtxRetain(byref(c_void_p()), 0)"),
        ("cuArray3DCreate_v2", "cuda.cuArray3DCreate_v2(byref(c_void_p()), descriptor(64, 64))"),
    ],
)
def test_mem_2_a_call_that_the_driver_fails_leaves_nothing_charged(
    base: Base, name: str, call: str
) -> None:
    """MEM-2: nothing allocated, nothing charged."""
    outcome = base.check(
        f"context(); before = left(); set_fault('{name}'); show({call}, left() == before)"
    )
    assert outcome.out == ["999 True"]


def test_a_free_that_the_driver_fails_keeps_the_charge(base: Base) -> None:
    outcome = base.check(
        """
        context()
        status, address = alloc(4 * MIB)
        before = left()
        set_fault("cuMemFree_v2")
        show(free(address), left() == before)
        set_fault("")
        show(free(address), left() - before)
        show(free(1), left() - before)
        """
    )
    assert outcome.out == ["999 True", f"0 {4 * MIB}", f"1 {4 * MIB}"]


def test_a_context_that_the_driver_does_not_destroy_keeps_its_charge(base: Base) -> None:
    outcome = base.check(
        """
        made = context()
        before = left()
        set_fault("cuCtxDestroy_v2")
        show(cuda.cuCtxDestroy_v2(made), left() == before)
        """
    )
    assert outcome.out == ["999 True"]


@pytest.mark.exact
def test_an_entry_point_that_this_driver_lacks_is_not_found(base: Base) -> None:
    """Not by ``dlsym`` either: a program that found it would call it."""
    outcome = base.check(
        "show(hasattr(cuda, 'cuMemAlloc_v2'), hasattr(cuda, 'cuMipmappedArrayCreate'))"
    )
    assert outcome.out == ["True False"]


def test_mem_1_arrays_without_deferred_twins_are_charged_an_upper_estimate(base: Base) -> None:
    """MEM-1: rows in units of 512 bytes, 16 rows at a time, blocks of 2 MiB in all."""
    outcome = base.check(
        """
        context()
        before = left()
        for width, height, depth in ((64, 64, 0), (65, 17, 70), (1, 0, 0)):
            array = c_void_p()
            check(cuda.cuArray3DCreate_v2(byref(array), descriptor(width, height, depth)))
            show(before - left())
            check(cuda.cuArrayDestroy(array))
            show(before - left())
        """
    )
    layers = -(-1536 * 32 * 70 // (2 * MIB)) * 2 * MIB
    assert outcome.out == [str(2 * MIB), "0", str(layers), "0", str(2 * MIB), "0"]


def test_an_entry_point_newer_than_this_release_is_not_handed_out(base: Base) -> None:
    """Only what allocates or launches by its family or verb; also a new version of an old name."""
    outcome = base.check(
        """
        for name, version in (("cuMemTakeShiny", 14000), ("cuMemAlloc", 14000),
                              ("cuSubgridLaunch", 14000), ("cuMemAlloc", 12000),
                              ("cuDeviceGetShine", 14000)):
            status, address, found = lookup(name, version)
            show(status, address is not None, found)
        address = c_void_p()
        for call, found in (cuda.cuGetProcAddress, ()), (cuda.cuGetProcAddress_v2, (None,)):
            status = call(b"cuMemTakeShiny", byref(address), 14000, c_uint64(0), *found)
            show(status, address.value)
        """
    )
    assert outcome.out == ["0 False 1"] * 3 + ["0 True 0"] * 2 + ["500 None"] * 2
    assert outcome.log == (
        "cgpu: an entry point that this release does not know is not handed out: cuMemTakeShiny\n"
    )


def test_mem_1_a_tool_that_the_driver_loads_in_cuinit_is_capped_as_well(base: Base) -> None:
    """MEM-1: what it looks up and allocates inside cuInit goes through the proxy."""
    outcome = base.check(
        """
        @ctypes.CFUNCTYPE(None)
        def tool():
            made, address = c_void_p(), c_void_p()
            check(cuda.cuCtxCreate_v2(byref(made), 0, 0))
            pointer = lookup("cuMemAlloc", 12000)[1]
            show(pointer == ctypes.cast(cuda.cuMemAlloc_v2, c_void_p).value, alloc(1 << 40)[0])
        cuda.stub_inject(tool)
        check(cuda.cuInit(0))
        show(left())
        """,
        CGPU_LOG="off",
    )
    assert outcome.out == ["True 2", str(CAP - CONTEXT)]


def test_mem_1_what_a_tool_looks_up_inside_a_hooked_call_is_swapped_too(base: Base) -> None:
    """MEM-1: the recursion guard lets calls pass, never look-ups."""
    outcome = base.check(
        """
        found = []
        tool = ctypes.CFUNCTYPE(None)(lambda: found.append(lookup("cuMemAlloc", 12000)[1]))
        check(cuda.cuInit(0))
        cuda.stub_inject(tool)
        check(cuda.cuCtxCreate_v3(byref(c_void_p()), None, 0, 0, 0))
        show(found == [ctypes.cast(cuda.cuMemAlloc_v2, c_void_p).value])
        """
    )
    assert outcome.out == ["True"]


def test_the_host_can_let_newer_entry_points_pass(make_base: Callable[[int], Base]) -> None:
    outcome = make_base(PASS_UNKNOWN).check("show(lookup('cuMemTakeShiny', 14000)[0])")
    assert (outcome.out, outcome.log) == (["0"], "")


@pytest.mark.parametrize(("flags", "status"), [(0, "215"), (PASS_UNKNOWN, "0")])
def test_mem_1_a_limit_that_only_the_driver_knows_is_not_set_unless_the_host_lets_it_pass(
    make_base: Callable[[int], Base], flags: int, status: str
) -> None:
    """MEM-1: it might take memory."""
    outcome = make_base(flags).check("context(); show(cuda.cuCtxSetLimit(11, c_size_t(7)))")
    assert outcome.out == [status]
    assert ("a limit that this release does not know" in outcome.log) == (flags == 0)


@pytest.mark.parametrize("broken", ["limits", "ledger"])
@pytest.mark.parametrize("how", ["missing", "garbage", "short", "another version", "larger"])
def test_rel_1_without_limits_or_ledger_cuda_does_not_start(
    base: Base, broken: str, how: str
) -> None:
    """REL-1: never an unlimited process."""
    path = base.path / broken
    content = path.read_bytes()
    path.unlink()
    broken_by = {
        "garbage": b"\xff" * len(content),
        "short": content[:64],
        "another version": content[:4] + b"\x63" + content[5:],
        "larger": content[:8]
        + (len(content) + 4096).to_bytes(4, "little")
        + content[12:]
        + bytes(4096),
    }
    if how in broken_by:
        path.write_bytes(broken_by[how])
    outcome = base.check(
        """
        show(cuda.cuInit(0), cuda.cuCtxCreate_v2(byref(c_void_p()), 0, 0), alloc(1)[0],
             cuda.cuDevicePrimaryCtxRetain(byref(c_void_p()), 0), cuda.stub_live())
        """
    )
    assert outcome.out == ["800 3 3 3 0"]
    assert outcome.log.startswith(f"cgpu: no CUDA in this process: the {broken} ")
    assert outcome.log.count("\n") == 1


def test_before_cuinit_nothing_is_allocated(base: Base) -> None:
    assert base.check("show(alloc(1)[0], cuda.cuMemGetInfo_v2(None, None))").out == ["3 3"]


def test_a_gpu_that_is_not_in_the_limits_has_no_memory(base: Base, stub: Path) -> None:
    other = lay_out(base.path.parent / "other", stub, stub_gpus(CAP)[:1])
    outcome = other.check(
        """
        check(cuda.cuInit(0))
        total = c_size_t()
        check(cuda.cuDeviceTotalMem_v2(byref(total), 1))
        show(total.value, cuda.cuCtxCreate_v2(byref(c_void_p()), 0, 1))
        """
    )
    assert outcome.out == ["0 2"]
    assert "this GPU is not among the container's" in outcome.log


def test_a_forked_child_is_not_attached_until_it_calls_cuinit(base: Base) -> None:
    """Nothing of the child's is charged to its parent, and its own charge goes with it (MEM-7)."""
    outcome = base.check(
        """
        import time
        context()
        before = left()
        if (child := os.fork()) == 0:
            show(alloc(1)[0])
            context()
            show(alloc(MIB)[0], before - left())
            os._exit(0)
        os.waitpid(child, 0)
        time.sleep(0.3)  # the dead are looked for every 200 ms
        show(left() == before)
        """
    )
    assert outcome.out == ["3", f"0 {CONTEXT + 2 * MIB}", "True"]


def test_mem_3_managed_memory_and_checkpoints_are_refused_with_one_line_each(base: Base) -> None:
    """MEM-3: CUDA_ERROR_NOT_SUPPORTED, whatever the driver could do."""
    outcome = base.check(
        """
        context()
        for _ in range(2):
            show(cuda.cuMemAllocManaged(byref(c_uint64()), c_size_t(1), 1),
                 cuda.cuMemPrefetchAsync(c_uint64(1), c_size_t(1), 0, None),
                 cuda.cuMemSetMemPool((c_int * 2)(1, 0), 2, None),
                 cuda.cuCheckpointProcessLock(1, None))
        """
    )
    assert set(outcome.out) == {"801 801 801 801"}
    assert outcome.log == (
        "cgpu: managed memory is not available here, refused: cuMemAllocManaged\n"
        "cgpu: checkpoints are not available here, refused: cuCheckpointProcessLock\n"
    )


def test_mem_3_attributes_of_managed_memory_read_zero_and_no_others(base: Base) -> None:
    """MEM-3: this driver answers every attribute with its own number."""
    outcome = base.check(
        """
        check(cuda.cuInit(0))
        value = c_int()
        for attribute in range(1, 145):
            check(cuda.cuDeviceGetAttribute(byref(value), attribute, 0))
            if value.value != attribute:
                show(attribute, value.value)
        """
    )
    assert outcome.out == [f"{n} 0" for n in (83, 88, 89, 100, 101)]


def test_mem_8_a_cap_that_is_lowered_below_use_refuses_and_frees_nothing(base: Base) -> None:
    """MEM-8: the change acts at once, in both directions."""
    process = base.start(
        """
        context()
        held = alloc(50 * MIB)
        for line in sys.stdin:
            show(memory(), alloc(2 * MIB)[0])
        """
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for cap, expected in (
        (CAP, f"({40 * MIB}, {CAP}) 0"),
        (20 * MIB, f"(0, {20 * MIB}) 2"),
        (65 * MIB, f"({2 * MIB}, {65 * MIB}) 0"),
    ):
        base.set_cap(cap)
        process.stdin.write("now\n")
        process.stdin.flush()
        assert process.stdout.readline().strip() == expected
    process.communicate(timeout=60)
