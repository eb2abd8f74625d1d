"""Programs that nobody here wrote, on the simulated NVML."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.containers.guests import guest_python
from lab.driver.nvml_base import MIB, T4_MIB, Gpu, Tenant, View, build_tenant, make_machine
from lab.driver.real_driver import real_nvidia_smi

pytestmark = pytest.mark.integration

QUERY = "index,name,uuid,memory.total,memory.used,memory.free,utilization.gpu,temperature.gpu"


@pytest.fixture(scope="module")
def tenant(tmp_path_factory: pytest.TempPathFactory) -> Tenant:
    folder = tmp_path_factory.mktemp("sim")
    return Tenant(build_tenant(folder / "tenant"), make_machine(folder / "driver", [Gpu()]))


@pytest.fixture(scope="module")
def view(tenant: Tenant) -> View:
    return View(tenant.machine, tenant.machine)


@pytest.fixture(scope="module")
def pid(tenant: Tenant) -> Iterator[int]:
    """A process with 300 MiB that computes all the time."""
    with tenant.running(300, kernel_ms=20) as pid:
        yield pid


@pytest.mark.parametrize("version", ["535", "550"])
def test_nvidia_smi_prints_memory_and_processes(version: str, view: View, pid: int) -> None:
    out = view.run(real_nvidia_smi(version))
    assert re.search(rf"300MiB */ *{T4_MIB}MiB", out)
    assert re.search(rf"0 +N/A +N/A +{pid} +C +\S*tenant +300MiB", out)
    assert "Tesla T4" in out


def test_nvidia_smi_lists_gpus(view: View) -> None:
    out = view.run(real_nvidia_smi(), "-L")
    assert out == f"GPU 0: Tesla T4 (UUID: {Gpu().uuid})\n"


def test_nvidia_smi_answers_queries(view: View, pid: int) -> None:
    table = view.run(real_nvidia_smi(), f"--query-gpu={QUERY}", "--format=csv,noheader,nounits")
    index, name, uuid, total, used, free, busy, celsius = table.strip().split(", ")
    assert (index, name, uuid) == ("0", "Tesla T4", Gpu().uuid)
    assert (int(total), int(used), int(free)) == (T4_MIB, 300, T4_MIB - 300)
    assert int(busy) > 0
    assert int(celsius) > 0
    fields = "--query-compute-apps=pid,used_memory,gpu_uuid"
    apps = view.run(real_nvidia_smi(), fields, "--format=csv,noheader")
    assert apps == f"{pid}, 300 MiB, {Gpu().uuid}\n"


def test_nvidia_smi_prints_everything(view: View, pid: int) -> None:
    out = view.run(real_nvidia_smi(), "-q")
    assert re.search(rf"FB Memory Usage\n +Total +: {T4_MIB} MiB", out)
    assert re.search(rf"Process ID +: {pid}\n", out)
    assert "Product Architecture                  : Turing" in out
    assert "ERR" not in out


@pytest.mark.parametrize("command", ["pmon", "dmon"])
def test_nvidia_smi_monitors(command: str, view: View, pid: int) -> None:
    out = view.run(real_nvidia_smi(), command, "-c", "1")
    assert str(pid if command == "pmon" else "5001") in out


def test_nvitop_shows_the_gpu_and_the_process(view: View, pid: int) -> None:
    out = view.run(guest_python(), "-m", "nvitop", "-1")
    assert "Tesla T4" in out
    assert re.search(rf"{pid} +C +root +300.0MiB", out)


def test_gpustat_shows_the_gpu_and_the_process(view: View, pid: int) -> None:
    out = view.run(guest_python(), "-m", "gpustat", "--no-header", "--no-color", "-p", "--show-pid")
    assert re.search(rf"\[0\] Tesla T4 .* 300 / {T4_MIB} MB", out)
    assert f"/{pid}(300M)" in out


def test_pynvml_reads_usage(view: View, pid: int) -> None:
    lines = view.python(
        "v1, v2 = [n.nvmlDeviceGetMemoryInfo(gpu, v) for v in (None, n.nvmlMemory_v2)]\n"
        "print(v1.used, v2.used)\n"
        "print([(p.pid, p.usedGpuMemory) for p in n.nvmlDeviceGetComputeRunningProcesses(gpu)])\n"
        "print(n.nvmlDeviceGetGraphicsRunningProcesses(gpu))\n"
        "detail = n.nvmlDeviceGetRunningProcessDetailList(gpu, n.nvmlProcessDetailList_v1, 0)\n"
        "print([p.pid for p in detail])\n"
        "print([(s.pid, s.smUtil > 0) for s in n.nvmlDeviceGetProcessUtilization(gpu, 0)])\n"
        "print(n.nvmlDeviceGetUtilizationRates(gpu).gpu > 0)\n"
        "print(n.nvmlSystemGetProcessName(os.getpid()))\n"
    )
    assert lines[:6] == [
        f"{300 * MIB} {300 * MIB}",
        str([(pid, 300 * MIB)]),
        "[]",
        f"[{pid}]",
        f"[({pid}, True)]",
        "True",
    ]
    assert Path(lines[6]).name.startswith("python")
