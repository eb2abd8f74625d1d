"""Programs and bindings that nobody here wrote run on the simulated driver unmodified."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lab.containers.guests import CUDA_13, PACKAGES, guest_python
from lab.driver.sim_cuda import Driver, make_driver

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

BINDINGS = """
import ctypes
from cuda.bindings import driver as cuda

def check(answer):
    assert answer[0] == cuda.CUresult.CUDA_SUCCESS, answer
    return answer[1] if len(answer) == 2 else answer[1:]

check(cuda.cuInit(0))
device = check(cuda.cuDeviceGet(0))
context = check(cuda.cuDevicePrimaryCtxRetain(device))
check(cuda.cuCtxSetCurrent(context))
data, back = (ctypes.c_char * 4096)(*b"bytes"), (ctypes.c_char * 4096)()
address = check(cuda.cuMemAlloc(4096))
check(cuda.cuMemcpyHtoD(address, ctypes.addressof(data), 4096))
check(cuda.cuMemcpyDtoH(ctypes.addressof(back), address, 4096))
module = check(cuda.cuModuleLoadData(b".version 7.0\\n.target sm_75\\n.visible .entry k() {}\\0"))
kernel = check(cuda.cuModuleGetFunction(module, b"k"))
stream = check(cuda.cuStreamCreate(0))
check(cuda.cuStreamBeginCapture(stream, cuda.CUstreamCaptureMode(0)))
check(cuda.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, 0, 0))
graph = check(cuda.cuStreamEndCapture(stream))
check(cuda.cuGraphLaunch(check(cuda.cuGraphInstantiate(graph, 0)), stream))
check(cuda.cuStreamSynchronize(stream))
free, total = check(cuda.cuMemGetInfo())
failed, _ = cuda.cuMemAlloc(1 << 40)
print(back.value.decode(), (total - free) >> 20, failed.name)
"""

NUMBA = """
import numpy as np
from numba import cuda

@cuda.jit
def add(given, out):
    at = cuda.grid(1)
    if at < given.size:
        out[at] = given[at] + 1

given = np.arange(1000, dtype=np.float32)
on_device = cuda.to_device(given)
out = cuda.device_array_like(on_device)
stream = cuda.stream()
add[10, 100](on_device, out)
add[10, 100, stream](on_device, out)
stream.synchronize()
cuda.synchronize()
print((on_device.copy_to_host() == given).all(), cuda.get_current_device().name.decode()
      if isinstance(cuda.get_current_device().name, bytes) else cuda.get_current_device().name)
try:
    cuda.device_array(20 << 30, dtype=np.uint8)
except Exception as error:
    print(type(error).__name__, "OUT_OF_MEMORY" in str(error))
cuda.close()
"""


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return make_driver(tmp_path / "driver")


def run(driver: Driver, packages: tuple[str, ...], program: str) -> str:
    done = subprocess.run(
        [guest_python(packages), "-W", "ignore", "-c", program],
        env=driver.environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("packages", [PACKAGES, CUDA_13], ids=["12", "13"])
def test_cuda_bindings_run(driver: Driver, packages: tuple[str, ...]) -> None:
    assert run(driver, packages, BINDINGS) == "bytes 109 CUDA_ERROR_OUT_OF_MEMORY\n"


def test_numba_compiles_and_launches_kernels(driver: Driver) -> None:
    assert run(driver, PACKAGES, NUMBA) == "True Tesla T4\nCudaAPIError True\n"
