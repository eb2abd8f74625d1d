"""The NVML proxy in front of the real driver: the share of a real GPU, and no other tenant."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cgpu_native import LimitsGpu
from lab.driver.nvml_base import MIB, SONAME, Base, View, lay_out

pytestmark = pytest.mark.gpu

STRANGER = """
import ctypes, sys
cuda, context, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(777 << 20)) == 0
print("ready", flush=True)
sys.stdin.read()
"""
GPUS = """
for i in range(n.nvmlDeviceGetCount()):
    h = n.nvmlDeviceGetHandleByIndex(i)
    print(n.nvmlDeviceGetUUID(h), n.nvmlDeviceGetMemoryInfo(h).total)
"""


@pytest.fixture(scope="module")
def driver() -> Path:
    """The folder of the system's NVML."""
    known = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True)
    found = re.search(rf"{re.escape(SONAME)} .*=> (\S+)", known.stdout)
    if found is None or not Path("/dev/nvidiactl").exists():
        pytest.skip("no NVIDIA driver")
    return Path(found.group(1)).parent


@pytest.fixture
def base(driver: Path, tmp_path: Path) -> Base:
    lines = [line.split() for line in View(driver, driver).python(GPUS)]
    gpus = [
        LimitsGpu(uuid, index, int(total) * 6 // 15, int(total))
        for index, (uuid, total) in enumerate(lines)
    ]
    return lay_out(tmp_path / "base", driver, gpus)


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process outside with 777 MiB on the first GPU."""
    command = [sys.executable, "-c", STRANGER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid


def test_mem_4_nvidia_smi_shows_the_cap_and_no_stranger(base: Base, stranger: int) -> None:
    """MEM-4. Also that this driver's nvidia-smi takes its lists where 535 and 550 do."""
    nvidia_smi = shutil.which("nvidia-smi") or pytest.skip("no nvidia-smi")
    plain = base.view._replace(libraries=base.machine).run(nvidia_smi)
    seen = base.view.run(nvidia_smi)
    mib = base.gpus[0].cap_bytes / MIB
    assert re.search(rf" 0MiB / +({int(mib)}|{math.ceil(mib)})MiB", seen), seen
    assert not re.search(rf"\b{stranger}\b", seen), seen
    assert re.search(r"[1-9]\d{2,}MiB / ", plain), plain
    assert base.view.run(nvidia_smi, "-L") == base.view._replace(libraries=base.machine).run(
        nvidia_smi, "-L"
    )


def test_mem_4_memory_info_is_cap_and_use(base: Base, stranger: int) -> None:
    """MEM-4: v1 and v2, beside a stranger's use and the driver's own."""
    assert stranger > 0
    lines = base.view.python(
        "for v in (None, n.nvmlMemory_v2):\n"
        "    m = n.nvmlDeviceGetMemoryInfo(gpu, v); print(m.total, m.used, m.free)\n"
        "print(n.nvmlDeviceGetComputeRunningProcesses(gpu))\n"
        "print(n.nvmlDeviceGetUtilizationRates(gpu).gpu)\n"
    )
    cap = base.gpus[0].cap_bytes
    assert lines == [f"{cap} 0 {cap}"] * 2 + ["[]", "0"]
