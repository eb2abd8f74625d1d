"""What the driver adds for printf, assert and malloc, through the libcuda proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab.driver.code_images import run

if TYPE_CHECKING:
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
