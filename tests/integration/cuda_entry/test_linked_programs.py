"""Programs that are linked against the proxies: of the driver's names, linkers find all."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from cgpu_sim import Gpu
from lab.driver import cuda_base, nvml_base
from lab.driver.old_driver import CUDA, NVML, RELEASES, make_old_driver

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.exact]

GPU = nvml_base.Gpu()
MACHINE = [Gpu(GPU.name, GPU.mib, GPU.uuid)]
SHARES = [GPU.limited(6, 15)]
LINKED = {
    "position independent": ("-fPIE", "-pie", "-Wl,-z,lazy"),
    "bound at once": ("-fPIE", "-pie", "-Wl,-z,now"),
    "at a fixed address": ("-fno-pie", "-no-pie", "-Wl,-z,now"),
    "as needed": ("-Wl,--as-needed",),
}

USES_CUDA = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int cuInit(unsigned int flags);   /* a hook */
int cuDeviceGetCount(int *count); /* the driver's own */
#ifdef __PIE__
int cuFuncGetName(void) __attribute__((weak)); /* this driver lacks it */
#else
#define cuFuncGetName NULL /* a program at a fixed address would have an address for it */
#endif
int (*volatile by_pointer)(int *count) = cuDeviceGetCount;

int
main(void)
{
    int count = 0;
    int again = 0;
    int first = cuInit(0);
    printf("%d %d %d ", first, cuDeviceGetCount(&count), by_pointer(&again));
    printf("%d %d %d ", count, again, cuFuncGetName != NULL);
    printf("%d\\n", dlsym(RTLD_DEFAULT, "cuFuncGetName") != NULL);
    return 0;
}
"""

USES_NVML = """
#include <stdio.h>

int nvmlInit_v2(void);
int nvmlDeviceGetCount_v2(unsigned int *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device);
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory); /* a hook */

int
main(void)
{
    unsigned int count = 0;
    unsigned long long memory[3] = {0};
    void *device;
    printf("%d ", nvmlInit_v2());
    printf("%d ", nvmlDeviceGetCount_v2(&count));
    printf("%d ", nvmlDeviceGetHandleByIndex_v2(0, &device));
    printf("%d ", nvmlDeviceGetMemoryInfo(device, memory));
    printf("%u %llu\\n", count, memory[0]);
    return 0;
}
"""


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """One of 418, which lacks many names."""
    return make_old_driver(tmp_path / "driver", RELEASES[0], MACHINE)


def printed(source: str, library: Path, driver: Path, *flags: str) -> str:
    """What a program prints that is linked against the proxy ``library``."""
    program = library.parent / "program"
    program.with_suffix(".c").write_text(source)
    link = ["-Wl,--no-as-needed", *flags, str(library), "-ldl"]
    cuda_base.compile_c(program.with_suffix(".c"), program, *link)
    done = subprocess.run(
        [program],
        env=os.environ
        | {"LD_LIBRARY_PATH": str(library.parent), "CGPU_SIM_MACHINE": str(driver / "machine")},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


@pytest.mark.parametrize("flags", LINKED.values(), ids=LINKED)
def test_a_program_can_be_linked_against_libcuda(driver: Path, flags: tuple[str, ...]) -> None:
    """What the driver lacks is missing from the program too."""
    base = cuda_base.lay_out(driver.parent / "base", driver / CUDA, SHARES)
    assert printed(USES_CUDA, base.proxy, driver, *flags) == "0 0 0 1 1 0 0\n"


def test_a_program_can_be_linked_against_nvml(driver: Path) -> None:
    base = nvml_base.lay_out(driver.parent / "base", driver, SHARES)
    cap = SHARES[0].cap_bytes
    assert printed(USES_NVML, base.view.libraries / NVML, driver) == f"0 0 0 0 1 {cap}\n"
