"""Drivers from 418 on: behind the proxies is missing what they lack, and limits hold on them."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from cgpu_env import CgpuError
from cgpu_node.facts import discovery
from cgpu_node.facts.node import load_node
from cgpu_node.settings.config import Config
from cgpu_sim import Gpu, make_driver_dir
from lab.driver import cuda_base, nvml_base
from lab.driver.cuda_proxied import CAP, CONTEXT, GPUS, MIB, Proxied
from lab.driver.entry_points import ROOT, classification
from lab.driver.nvml_base import Tenant, build_tenant
from lab.driver.old_driver import CUDA, NVML, RELEASES, make_old_driver
from lab.driver.symbols import exported

pytestmark = pytest.mark.integration

MACHINE = [Gpu(gpu.name, gpu.mib, gpu.uuid) for gpu in GPUS]
SHARES = [gpu.limited(6, 15) for gpu in GPUS]


@pytest.fixture(params=RELEASES, ids=lambda release: release.version)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The driver directory of two T4 with an old driver."""
    return make_old_driver(tmp_path / "driver", request.param, MACHINE)


def proxied(driver: Path) -> Proxied:
    """6 of 15 GiB of each GPU, as a container has it."""
    limits = [share._replace(context_bytes=CONTEXT) for share in SHARES]
    base = cuda_base.lay_out(driver.parent / "base", driver / CUDA, limits)
    return Proxied(base, driver / "machine")


def test_the_cost_of_a_context_is_found_out(old: Path, tmp_path: Path) -> None:
    node = load_node(str(tmp_path), str(old), config=Config())
    assert [gpu.context_bytes for gpu in node.gpus] == [CONTEXT, CONTEXT]
    assert node.notes == ()


def test_a_driver_before_418_is_refused_with_its_version(tmp_path: Path) -> None:
    """ENV-9: its facts are kept, and whoever reads them refuses it too."""
    folder = make_driver_dir(tmp_path / "driver", MACHINE, driver_version="410.48")
    sentence = f"driver 410.48 in {folder}: expected 418 (CUDA 10.1) or later"
    for refresh in (False, False, True):
        with pytest.raises(CgpuError) as refused:
            load_node(str(tmp_path), str(folder), config=Config(), refresh=refresh)
        assert (str(refused.value), refused.value.hint) == (sentence, "install a newer driver")


def test_what_libcuda_cannot_be_loaded_without_is_mounted_beside_it(
    old: Path, tmp_path: Path
) -> None:
    version = load_node(str(tmp_path), str(old), config=Config()).driver_version
    loader = old / f"libnvidia-fatbinaryloader.so.{version}"
    loader.touch()
    (tmp_path / "state").mkdir()
    node = load_node(str(tmp_path / "state"), str(old), config=Config())
    assert node.companions == {loader.name: str(loader)}


def test_mem_9_the_audit_sees_who_holds_what(old: Path, tmp_path: Path) -> None:
    """MEM-9: and what is in use, without what the driver keeps for itself."""
    tenant = Tenant(build_tenant(tmp_path / "tenant"), old)
    with tenant.running(300, gpu=1) as pid:
        probe = discovery.start_probe("holdings", str(old), subprocess.PIPE)
        answer, error = probe.communicate(b"\n", timeout=60)
    assert error == b""
    assert [(gpu["used_bytes"], gpu["holders"]) for gpu in json.loads(answer)["gpus"]] == [
        (0, []),
        (300 * MIB, [[pid, 300 * MIB]]),
    ]


FIND = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
print(*(name for name in sys.argv[2:] if hasattr(library, name)))
"""


def found(base: Path, soname: str, names: set[str]) -> set[str]:
    """Those of ``names`` that a program finds in the proxy."""
    command = [sys.executable, "-c", FIND, str(base / "lib" / soname), *sorted(names)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


def libcuda_finds_exactly_the_names_of(driver: Path) -> None:
    """A name that then fails keeps programs from what they do without it."""
    names = {row.name for row in classification()}
    base = cuda_base.lay_out(driver.parent / "base", driver / CUDA, SHARES)
    assert found(base.path, CUDA, names) == exported(driver / CUDA) & names


@pytest.mark.exact
def test_a_program_finds_exactly_the_names_of_libcuda(old: Path) -> None:
    libcuda_finds_exactly_the_names_of(old)


@pytest.mark.exact
def test_a_program_finds_exactly_the_names_of_a_later_libcuda(tmp_path: Path) -> None:
    """It may ask cuGetProcAddress_v2 what there is, and some programs ask dlsym alone."""
    libcuda_finds_exactly_the_names_of(make_driver_dir(tmp_path / "driver", MACHINE))


def nvml_finds_exactly_the_names_of(driver: Path) -> None:
    with (ROOT / "shim" / "nvml" / "entry_points.csv").open(newline="") as file:
        names = {row["name"] for row in csv.DictReader(file)}
    base = nvml_base.lay_out(driver.parent / "base", driver, SHARES)
    assert found(base.path, NVML, names) == exported(driver / NVML) & names


@pytest.mark.exact
def test_a_program_finds_exactly_the_names_of_nvml(old: Path) -> None:
    nvml_finds_exactly_the_names_of(old)


@pytest.mark.exact
def test_a_program_finds_exactly_the_names_of_a_later_nvml(tmp_path: Path) -> None:
    """Nothing tells what NVML has but the names themselves."""
    nvml_finds_exactly_the_names_of(make_driver_dir(tmp_path / "driver", MACHINE))


def test_mem_1_mem_2_memory_is_charged_and_capped(old: Path) -> None:
    """MEM-1, MEM-2: contexts too; a kernel runs."""
    outcome = proxied(old).check(
        """
        from lab.calls.cuda_kind_calls import PTX, made
        check(cuda.cuInit(0))
        primary = c_void_p()
        check(cuda.cuDevicePrimaryCtxRetain(byref(primary), 0))
        check(cuda.cuCtxSetCurrent(primary))
        show(used() // MIB)
        status, address = alloc(64 * MIB)
        show(status, used() // MIB, truth() == used())
        show(alloc(left() + 1)[0], alloc(left())[0], used())
        check(free(address))
        function = made(cuda.cuModuleGetFunction, made(cuda.cuModuleLoadData, PTX), b"plain")
        check(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None))
        check(cuda.cuCtxSynchronize())
        show(truth() == used())
        check(cuda.cuDevicePrimaryCtxRelease(0))
        show(used())
        """
    )
    whole = CAP // (2 * MIB) * 2 * MIB
    context = CONTEXT // MIB
    assert outcome.out == [
        str(context),
        f"0 {context + 64} True",
        f"2 0 {whole + (CONTEXT - whole) % (2 * MIB)}",
        "True",
        "0",
    ]


def test_mem_1_pools_of_which_the_driver_does_not_say_what_they_take_are_refused(
    tmp_path: Path,
) -> None:
    """MEM-1: CUDA 11.2 is the first with pools. A program sees that there are none."""
    outcome = proxied(make_old_driver(tmp_path / "driver", RELEASES[-1], MACHINE)).check(
        """
        from lab.calls.cuda_kind_calls import alloc_async, make_pool
        context()
        before, has_pools = used(), c_int()
        check(cuda.cuDeviceGetAttribute(byref(has_pools), 115, 0))
        show(has_pools.value, alloc_async(64 * MIB)[0], alloc_async(64 * MIB, make_pool())[0])
        show(used() - before, truth() - before)
        """
    )
    assert outcome.out == ["0 801 801", "0 0"]
    assert "memory pools need driver 465 or later here, refused: cuMemAllocAsync" in outcome.log


def test_mem_4_nvidia_smi_gets_a_private_table_without_process_lists(old: Path) -> None:
    """MEM-4: nvidia-smi to 470 takes it, or says that it is of another version, and lists no
    processes by it."""
    base = nvml_base.lay_out(old.parent / "base", old, SHARES)
    program = (
        "table = c.c_void_p()\n"
        "id = bytes.fromhex('c4fe3e6cc98f6c4ea327ee696e12f7c4')\n"
        "print(n.nvmlLib.nvmlInternalGetExportTable(c.byref(table), id))\n"
        "print(c.cast(table, c.POINTER(c.c_uint64))[0] // 8)\n"
    )
    status, slots = base.view.python(program)
    assert status == "0"
    assert int(slots) < 200
