"""What programs in a container see of a GPU through NVML: their share of it, and nobody else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cgpu_sim import Fault, inject
from lab.containers.guests import guest_python
from lab.driver.nvml_base import MIB, T4_MIB, Base, Gpu, Tenant, build_tenant, lay_out, make_machine
from lab.driver.real_driver import real_nvidia_smi

pytestmark = pytest.mark.integration

SMALL_CAP = T4_MIB * MIB * 6 // 15


@pytest.fixture(scope="module")
def tenant(tmp_path_factory: pytest.TempPathFactory) -> Tenant:
    folder = tmp_path_factory.mktemp("sim")
    return Tenant(build_tenant(folder / "tenant"), make_machine(folder / "driver", [Gpu()]))


@pytest.fixture(scope="module")
def stranger(tenant: Tenant) -> Iterator[int]:
    """A process of another container, busy on the same GPU."""
    with tenant.running(700, kernel_ms=20) as pid:
        yield pid


@pytest.fixture(scope="module")
def own(tenant: Tenant) -> Iterator[int]:
    """A process of the container, busy too."""
    with tenant.running(300, kernel_ms=20) as pid:
        yield pid


@pytest.fixture
def base(tenant: Tenant, tmp_path: Path) -> Base:
    return lay_out(tmp_path / "base", tenant.machine, [Gpu().limited(6, 15)])


@pytest.fixture
def used(base: Base, own: int, stranger: int) -> Iterator[Base]:
    """The container while its process holds 300 MiB by the ledger."""
    assert stranger != own
    with base.attach(own) as ledger:
        ledger.charge(0, SMALL_CAP, 300 * MIB)
        yield base


@pytest.mark.parametrize(("share", "shown"), [(6, 6043), (9, 9065)])
def test_mem_4_nvidia_smi_shows_the_cap(
    share: int, shown: int, tenant: Tenant, tmp_path: Path
) -> None:
    """MEM-4, ENV-8: 6 and 9 of 15 on a T4."""
    base = lay_out(tmp_path / "base", tenant.machine, [Gpu().limited(share, 15)])
    out = base.view.run(real_nvidia_smi())
    assert re.search(rf" 0MiB / +{shown}MiB", out)


def test_mem_4_memory_info_is_cap_and_use(used: Base) -> None:
    """MEM-4: v1 and v2."""
    lines = used.view.python(
        "for v in (None, n.nvmlMemory_v2):\n"
        "    m = n.nvmlDeviceGetMemoryInfo(gpu, v)\n"
        "    print(m.total, m.used, m.free, getattr(m, 'reserved', 0))\n"
    )
    assert lines == [f"{SMALL_CAP} {300 * MIB} {SMALL_CAP - 300 * MIB} 0"] * 2


def test_mem_8_a_changed_cap_shows_at_once(used: Base) -> None:
    """MEM-8: also below what is used."""
    used.set_cap(200 * MIB)
    lines = used.view.python("m = n.nvmlDeviceGetMemoryInfo(gpu); print(m.total, m.used, m.free)")
    assert lines == [f"{200 * MIB} {300 * MIB} 0"]


@pytest.mark.parametrize("version", ["535", "550"])
def test_mem_4_nvidia_smi_shows_only_own_processes(
    version: str, used: Base, own: int, stranger: int
) -> None:
    """MEM-4: the list that nvidia-smi takes from its private table."""
    for arguments in ([], ["-q"], ["pmon", "-c", "1"], ["--query-compute-apps=pid,used_memory"]):
        options = ["--format=csv"] if "query" in str(arguments) else []
        out = used.view.run(real_nvidia_smi(version), *arguments, *options)
        assert re.search(rf"\b{own}\b", out), out
        assert not re.search(rf"\b{stranger}\b", out), out
        assert "700" not in out


def test_mem_4_every_public_list_has_only_own_processes(used: Base, own: int) -> None:
    lines = used.view.python(
        "kinds = 'Compute', 'Graphics', 'MPSCompute'\n"
        "for suffix in '', '_v2', '_v3':\n"
        "    for kind in kinds:\n"
        "        type_ = n.c_nvmlProcessInfo_v2_t\n"
        "        class v1(c.Structure):\n"
        "            _fields_ = type_._fields_[:2]\n"
        "        got = ((type_ if suffix else v1) * 4)(); count = c.c_uint(4)\n"
        "        f = n._nvmlGetFunctionPointer(f'nvmlDeviceGet{kind}RunningProcesses{suffix}')\n"
        "        print(f(gpu, c.byref(count), got),\n"
        "              [(p.pid, p.usedGpuMemory) for p in got[:count.value]])\n"
    )
    assert lines == [f"0 [({own}, {300 * MIB})]", "0 []", "0 []"] * 3


def test_the_detail_list_has_only_own_processes(used: Base, own: int) -> None:
    lines = used.view.python(
        "for mode in 0, 1, 2:\n"
        "    got = n.nvmlDeviceGetRunningProcessDetailList(gpu, n.nvmlProcessDetailList_v1, mode)\n"
        "    print([(p.pid, p.usedGpuMemory) for p in got])\n"
        "print(code(n.nvmlDeviceGetRunningProcessDetailList, gpu, 2 << 24 | 24, 0))\n"
    )
    assert lines == [f"[({own}, {300 * MIB})]", "[]", "[]", "NVMLError_ArgumentVersionMismatch"]


def test_the_size_protocol_of_lists_is_nvmls(used: Base) -> None:
    """Too little room gives the number of entries; none at all needs no buffer."""
    lines = used.view.python(
        "f = n._nvmlGetFunctionPointer('nvmlDeviceGetComputeRunningProcesses_v3')\n"
        "count = c.c_uint(0); print(f(gpu, c.byref(count), None), count.value)\n"
        "count = c.c_uint(1); print(f(gpu, c.byref(count), None), count.value)\n"
        "print(f(gpu, None, None))\n"
        "f = n._nvmlGetFunctionPointer('nvmlDeviceGetGraphicsRunningProcesses_v3')\n"
        "count = c.c_uint(0); print(f(gpu, c.byref(count), None), count.value)\n"
    )
    assert lines == ["7 1", "2 1", "2", "0 0"]


def test_utilization_is_that_of_own_processes(used: Base, own: int) -> None:
    """Two tenants keep the GPU busy all the time; each is shown its part."""
    lines = used.view.python(
        "u = n.nvmlDeviceGetUtilizationRates(gpu).gpu\n"
        "s = n.nvmlDeviceGetProcessUtilization(gpu, 0)\n"
        "print(0 < u < 90, [p.pid for p in s], n.nvmlDeviceGetEncoderUtilization(gpu)[0])\n"
        "print([p.pid for p in n.nvmlDeviceGetProcessesUtilizationInfo(gpu, 0)])\n"
    )
    assert lines == [f"True [{own}] 0", f"[{own}]"]


@pytest.mark.parametrize("result", [3, 6, 13])
def test_utilization_is_known_where_only_the_newer_function_has_figures(
    tmp_path: Path, result: int
) -> None:
    """As of Blackwell, by reports: the older one supports that no more, or finds nobody."""
    machine = make_machine(tmp_path / "driver", [Gpu()])
    inject(machine, Fault("nvmlDeviceGetProcessUtilization", result=result, repeat=True))
    tenant = Tenant(build_tenant(tmp_path / "tenant"), machine)
    base = lay_out(tmp_path / "base", machine, [Gpu().limited(6, 15)])
    with (
        tenant.running(300, kernel_ms=20) as own,
        tenant.running(700, kernel_ms=20),
        base.attach(own) as ledger,
    ):
        ledger.charge(0, SMALL_CAP, 300 * MIB)
        lines = base.view.python(
            "import time\n"
            "while not n.nvmlDeviceGetUtilizationRates(gpu).gpu: time.sleep(0.05)\n"
            "s = n.nvmlDeviceGetProcessUtilization(gpu, 0)\n"
            "print(n.nvmlDeviceGetUtilizationRates(gpu).gpu < 90, [p.pid for p in s])\n"
        )
    assert lines == [f"True [{own}]"]


def test_without_own_processes_the_gpu_looks_idle(base: Base, stranger: int) -> None:
    assert stranger > 0
    lines = base.view.python(
        "u = n.nvmlDeviceGetUtilizationRates(gpu); print(u.gpu, u.memory)\n"
        "print(n.nvmlDeviceGetComputeRunningProcesses(gpu), n.nvmlDeviceGetMemoryInfo(gpu).used)\n"
        "print(code(n.nvmlDeviceGetProcessUtilization, gpu, 0))\n"
    )
    assert lines == ["0 0", "[] 0", "NVMLError_NotFound"]


def test_a_gpu_that_nobody_uses_reads_0(tmp_path: Path) -> None:
    """The driver has no sample of any process then, which is not an error."""
    machine = make_machine(tmp_path / "driver", [Gpu()])
    base = lay_out(tmp_path / "base", machine, [Gpu().limited(6, 15)])
    lines = base.view.python("u = n.nvmlDeviceGetUtilizationRates(gpu); print(u.gpu, u.memory)")
    assert lines == ["0 0"]


def test_figures_of_all_tenants_together_are_not_supported(used: Base) -> None:
    lines = used.view.python(
        "for f in 'BAR1MemoryInfo', 'EncoderStats', 'FBCStats', 'EncoderSessions':\n"
        "    print(code(getattr(n, 'nvmlDeviceGet' + f), gpu))\n"
        "print(code(n.nvmlDeviceGetAccountingStats, gpu, os.getpid()))\n"
    )
    assert lines == ["NVMLError_NotSupported"] * 4 + ["NVMLError_NotFound"]


def test_of_histories_only_those_of_clocks_and_power_are_shown(used: Base) -> None:
    """What is newer than cgpu may show what others do."""
    lines = used.view.python("print(*(code(n.nvmlDeviceGetSamples, gpu, t, 0) for t in range(11)))")
    shown = {0, 5, 6, 7}
    codes = ["NVMLError_NotFound" if t in shown else "NVMLError_NotSupported" for t in range(11)]
    assert lines == [" ".join(codes)]


def test_what_identifies_the_gpu_is_the_drivers(base: Base, tenant: Tenant) -> None:
    """MEM-5."""
    program = (
        "print(n.nvmlSystemGetDriverVersion(), n.nvmlDeviceGetCount(), n.nvmlDeviceGetUUID(gpu),\n"
        "      n.nvmlDeviceGetPciInfo(gpu).busId, n.nvmlDeviceGetName(gpu))\n"
    )
    plain = base.view._replace(libraries=tenant.machine)
    assert base.view.python(program) == plain.python(program)


def test_errors_of_the_driver_stand(base: Base) -> None:
    lines = base.view.python(
        "f = n._nvmlGetFunctionPointer('nvmlDeviceGetMemoryInfo')\n"
        "print(f(None, c.byref(n.c_nvmlMemory_t())), f(gpu, None))\n"
        "print(code(n.nvmlDeviceGetMemoryInfo, gpu, 1 << 24 | 40))\n"
        "n.nvmlShutdown(); print(code(n.nvmlDeviceGetMemoryInfo, gpu))\n"
    )
    assert lines == ["2 2", "NVMLError_ArgumentVersionMismatch", "NVMLError_Uninitialized"]


def test_nvitop_shows_the_share(used: Base, own: int, stranger: int) -> None:
    out = used.view.run(guest_python(), "-m", "nvitop", "-1")
    assert re.search(r"300\.0MiB / 6044MiB", out)  # nvitop rounds 6043.6
    assert re.search(rf"\b{own} C", out)
    assert str(stranger) not in out


def test_gpustat_shows_the_share(used: Base, own: int, stranger: int) -> None:
    out = used.view.run(guest_python(), "-m", "gpustat", "--no-color", "-p", "--show-pid")
    assert re.search(r"300 / +6043 MB", out)
    assert f"/{own}(300M)" in out
    assert str(stranger) not in out


def test_a_process_that_ends_gives_its_use_back(base: Base, own: int) -> None:
    """MEM-7 as NVML shows it."""
    program = "print(n.nvmlDeviceGetMemoryInfo(gpu).used)"
    with base.attach(own) as ledger:
        ledger.charge(0, SMALL_CAP, 5 * MIB)
        assert base.view.python(program) == [str(5 * MIB)]
    assert base.view.python(program) == ["0"]


def test_a_forked_child_sees_the_same(used: Base) -> None:
    lines = used.view.python(
        "print(n.nvmlDeviceGetMemoryInfo(gpu).used, flush=True)\n"
        "if os.fork() == 0:\n"
        "    print(n.nvmlDeviceGetMemoryInfo(gpu).used, flush=True); os._exit(0)\n"
        "os.wait()\n"
    )
    assert lines == [str(300 * MIB)] * 2
