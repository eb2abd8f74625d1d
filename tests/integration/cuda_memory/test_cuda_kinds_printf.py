"""What the driver adds for printf, assert and malloc, through the libcuda proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab.driver.code_images import NEIGHBOUR, cubin, run

if TYPE_CHECKING:
    from pathlib import Path

    from lab.driver.cuda_proxied import Proxied

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_mem_1_what_the_driver_adds_for_assert_is_charged_once_in_a_context(
    proxied: Proxied, mode: str
) -> None:
    """MEM-1: with the first code that calls it, and until the context goes."""
    out = run(
        proxied,
        """
        for image in (PTX, ASSERTING_PTX, ASSERTING_PTX):
            module = made(cuda.cuModuleLoadData, image)
            made(cuda.cuModuleGetFunction, module, b"plain")
            show((used() - base) // MIB, drift())
        check(cuda.cuModuleUnload(module))
        show((used() - base) // MIB, drift())
        check(cuda.cuCtxDestroy_v2(made(cuda.cuCtxGetCurrent)))
        show(used())
        """,
        **({"CGPU_SIM_LAZY": "1"} if mode == "lazy" else {}),
    )
    assert out == ["2 0", "96 0", "98 0", "96 0", "0"]


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_mem_1_the_handle_of_a_kernel_that_asserts_is_charged_before_its_launch(
    proxied: Proxied, mode: str
) -> None:
    """MEM-1: the launch takes nothing more."""
    out = run(
        proxied,
        """
        library = load_library(ASSERTING_PTX)
        kernel = made(cuda.cuLibraryGetKernel, library, b"plain")
        show((used() - base) // MIB, drift())
        argument = c_uint64(0)
        arguments = (c_void_p * 1)(ctypes.addressof(argument))
        check(cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, arguments, None))
        check(cuda.cuCtxSynchronize())
        show((used() - base) // MIB, drift())
        """,
        **({"CGPU_SIM_LAZY": "1"} if mode == "lazy" else {}),
    )
    assert out == ["94 0", "94 0"]


def test_mem_1_it_stays_charged_when_the_code_that_brought_it_is_unloaded(
    proxied: Proxied,
) -> None:
    """MEM-1: as often as code is loaded and unloaded; the driver keeps it."""
    out = run(
        proxied,
        """
        for _ in range(3):
            module = made(cuda.cuModuleLoadData, ASSERTING_PTX)
            check(cuda.cuModuleUnload(module))
            show((used() - base) // MIB, drift() <= 0)
        """,
    )
    assert out == ["94 True"] * 3


def test_mem_2_it_is_charged_even_if_the_code_that_brought_it_is_refused(
    proxied: Proxied,
) -> None:
    """MEM-2: the module is unloaded, but the driver keeps it; the next one would find it there."""
    out = run(
        proxied,
        """
        status, filler = alloc(left() - 10 * MIB)
        module = c_void_p()
        show(status, cuda.cuModuleLoadData(byref(module), ASSERTING_PTX), drift() <= 0)
        check(free(filler))
        show(cuda.cuModuleLoadData(byref(module), ASSERTING_PTX), drift() <= 0)
        """,
    )
    assert out == ["0 2 True", "0 True"]


def test_mem_1_an_enumerated_kernel_that_asserts_is_charged_before_its_launch(
    proxied: Proxied,
) -> None:
    """MEM-1: one of them is loaded, and brings it for all."""
    out = run(
        proxied,
        """
        library = load_library(ASSERTING_PTX)
        kernels = (c_void_p * 3)()
        check(cuda.cuLibraryEnumerateKernels(kernels, 3, library))
        show((used() - base) // MIB, drift())
        """,
    )
    assert out == ["94 0"]


def test_mem_1_shared_memory_of_the_launch_is_no_function_of_the_drivers(proxied: Proxied) -> None:
    """MEM-1: such code gets no allowance for what others allocate meanwhile."""
    out = run(
        proxied,
        NEIGHBOUR
        + """
        shared = PTX.replace(b".global", b".extern .shared .align 4 .b8 own[];\\n.global", 1)
        inject(machine, Fault("cuModuleLoadData", delay_us=10000, repeat=True))
        thread.start()
        for _ in range(10):
            check(cuda.cuModuleUnload(made(cuda.cuModuleLoadData, shared)))
        stop.set()
        thread.join()
        show(used() - base)
        """,
    )
    assert out == ["0"]


CALLS_MALLOC = (
    'PTX.replace(b".global", b".extern .func (.param .b64 r) malloc (.param .b64 m);\\n.global", 1)'
)


@pytest.mark.parametrize(
    ("image", "kernel"),
    [(CALLS_MALLOC, "plain"), ("open(sys.argv[1], 'rb').read()", "work")],
    ids=["PTX", "cubin"],
)
def test_mem_1_the_heap_of_a_kernel_that_calls_malloc_is_charged_with_its_load(
    proxied: Proxied, tmp_path: Path, image: str, kernel: str
) -> None:
    """MEM-1: once in a context, before the launch that takes it, whatever was loaded before."""
    (tmp_path / "cubin").write_bytes(cubin(managed=False, calls="malloc"))
    out = run(
        proxied,
        f"""
        image, kernel = {image}, b"{kernel}"
        made(cuda.cuModuleLoadData, ASSERTING_PTX)
        before = used()
        for _ in range(2):
            function = made(cuda.cuModuleGetFunction, made(cuda.cuModuleLoadData, image), kernel)
            show((used() - before) // MIB, drift() // MIB)
            check(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None))
            check(cuda.cuCtxSynchronize())
            show((used() - before) // MIB, drift() // MIB)
        """,
        str(tmp_path / "cubin"),
    )
    assert out == ["12 -10", "12 0", "14 0", "14 0"]


def test_mem_2_code_whose_heap_does_not_fit_is_refused(proxied: Proxied) -> None:
    """MEM-2: its launch could not be."""
    out = run(
        proxied,
        f"""
        image = {CALLS_MALLOC}
        made(cuda.cuModuleLoadData, ASSERTING_PTX)
        status, filler = alloc(left() - 8 * MIB)
        module = c_void_p()
        show(status, cuda.cuModuleLoadData(byref(module), image), drift())
        check(free(filler))
        show(cuda.cuModuleLoadData(byref(module), image), drift() // MIB)
        """,
    )
    assert out == ["0 2 0", "0 -10"]


def test_mem_2_a_heap_that_did_not_fit_makes_no_other_function_free(proxied: Proxied) -> None:
    """MEM-2: what was loaded before needs no heap, and its local memory is charged or refused."""
    out = run(
        proxied,
        f"""
        large = PTX.replace(b"plain", b"local_9216b")
        made(cuda.cuModuleLoadData, ASSERTING_PTX)
        plain, large = made(cuda.cuModuleLoadData, PTX), made(cuda.cuModuleLoadData, large)
        check(alloc(left() - 8 * MIB)[0])
        show(cuda.cuModuleLoadData(byref(c_void_p()), {CALLS_MALLOC}))
        before, function = used(), c_void_p()
        for module, name in (large, b"local_9216b"), (plain, b"plain"):
            show(cuda.cuModuleGetFunction(byref(function), module, name), function.value is None)
        show(used() - before, drift())
        """,
    )
    assert out == ["2", "2 True", "0 False", "0 0"]
