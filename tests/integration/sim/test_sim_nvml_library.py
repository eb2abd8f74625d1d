"""The simulated libnvidia-ml.so.1 against the real ones' interface."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from cgpu_sim import Fault, inject
from lab.driver.nvml_base import ROOT, SIMULATED, Gpu, View, make_machine
from lab.driver.real_driver import real_library, real_nvidia_smi
from lab.driver.symbols import exported

pytestmark = pytest.mark.integration

FUNCTIONS = ROOT / "tests" / "sim" / "nvml" / "functions.def"
OF_THE_MACHINE = {"cgpu_sim_create", "cgpu_sim_inject", "cgpu_sim_lose", "cgpu_sim_usage"}
TWO = (Gpu(), Gpu("NVIDIA A10", 22731, 1, reserved_mib=400))


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_machine(tmp_path_factory.mktemp("sim") / "driver", TWO)


@pytest.fixture
def view(machine: Path) -> View:
    return View(machine, machine)


@pytest.mark.parametrize("version", ["535", "550"])
def test_every_function_of_the_real_library_is_exported(version: str) -> None:
    real = exported(real_library(version, "libnvidia-ml.so.1"))
    assert len(real) > 300
    assert real <= exported(SIMULATED)


def test_the_table_lists_exactly_what_is_exported_and_each_name_once() -> None:
    names = re.findall(r"^NVML_\w+\((nvml\w+)", FUNCTIONS.read_text(), flags=re.MULTILINE)
    assert len(names) == len(set(names))
    assert set(names) == exported(SIMULATED) - OF_THE_MACHINE


def test_devices_are_found_by_index_uuid_serial_and_bus_id(view: View) -> None:
    lines = view.python(
        "for i in range(n.nvmlDeviceGetCount()):\n"
        "    h = n.nvmlDeviceGetHandleByIndex(i); bus = n.nvmlDeviceGetPciInfo(h).busId\n"
        "    uuid = n.nvmlDeviceGetUUID(h)\n"
        "    again = [n.nvmlDeviceGetHandleByUUID(uuid), n.nvmlDeviceGetHandleByPciBusId(bus),\n"
        "             n.nvmlDeviceGetHandleBySerial(n.nvmlDeviceGetSerial(h))]\n"
        "    print(n.nvmlDeviceGetName(h), uuid, bus, [n.nvmlDeviceGetIndex(a) for a in again])\n"
    )
    assert lines == [
        f"Tesla T4 {TWO[0].uuid} 00000000:04:00.0 [0, 0, 0]",
        f"NVIDIA A10 {TWO[1].uuid} 00000000:05:00.0 [1, 1, 1]",
    ]


def test_only_gpus_whose_node_exists_are_seen_and_they_are_renumbered(tmp_path: Path) -> None:
    machine = make_machine(tmp_path / "driver", TWO)
    (machine / "gpu0").unlink()
    lines = View(machine, machine).python(
        "print(n.nvmlDeviceGetCount(), n.nvmlDeviceGetIndex(gpu), n.nvmlDeviceGetMinorNumber(gpu))"
        "\nprint(n.nvmlDeviceGetName(gpu), code(n.nvmlDeviceGetHandleByIndex, 1))"
    )
    assert lines == ["1 0 1", "NVIDIA A10 NVMLError_InvalidArgument"]


def test_errors_are_those_of_the_real_library(view: View) -> None:
    lines = view.python(
        "print(code(n.nvmlDeviceGetHandleByUUID, 'GPU-0'), code(n.nvmlDeviceGetFanSpeed, gpu))\n"
        "small = c.create_string_buffer(4)\n"
        "name = n._nvmlGetFunctionPointer('nvmlDeviceGetName')\n"
        "print(name(gpu, small, 4), name(None, small, 4), name(c.c_void_p(8), small, 4))\n"
        "n.nvmlShutdown(); print(code(n.nvmlDeviceGetCount), code(n.nvmlShutdown))\n"
    )
    assert lines == [
        "NVMLError_NotFound NVMLError_NotSupported",
        "7 2 2",
        "NVMLError_Uninitialized NVMLError_Uninitialized",
    ]


def test_reserved_memory_counts_as_used_in_v1_and_stands_apart_in_v2(view: View) -> None:
    lines = view.python(
        "gpu = n.nvmlDeviceGetHandleByIndex(1)\n"
        "for v in (None, n.nvmlMemory_v2):\n"
        "    m = n.nvmlDeviceGetMemoryInfo(gpu, v)\n"
        "    print([b >> 20 for b in (m.total, getattr(m, 'reserved', 0), m.used, m.free)])\n"
    )
    assert lines == ["[22731, 0, 400, 22331]", "[22731, 400, 0, 22331]"]


def test_initialisation_is_counted(view: View) -> None:
    lines = view.python(
        "n.nvmlInit(); n.nvmlShutdown(); print(n.nvmlDeviceGetCount())\n"
        "n.nvmlShutdown(); print(code(n.nvmlDeviceGetCount))\n"
    )
    assert lines == ["2", "NVMLError_Uninitialized"]


@pytest.mark.parametrize("version", ["535", "550"])
def test_nvidia_smi_knows_every_field_of_two_gpus_and_how_they_are_connected(
    version: str, view: View
) -> None:
    nvidia_smi = real_nvidia_smi(version)
    matrix = view.run(nvidia_smi, "topo", "-m")
    assert re.search(r"^GPU0\t X \tPHB", matrix, flags=re.MULTILINE)
    known = re.findall(r'^"([\w.]+)"', view.run(nvidia_smi, "--help-query-gpu"), re.MULTILINE)
    assert len(known) > 100
    rows = view.run(nvidia_smi, f"--query-gpu={','.join(known)}", "--format=csv,noheader")
    assert len(rows.splitlines()) == 2
    assert not re.search("error|unknown", rows, flags=re.IGNORECASE)
    tree = ET.fromstring(view.run(nvidia_smi, "-q", "-x"))
    assert [gpu.findtext("fb_memory_usage/total") for gpu in tree.iter("gpu")] == [
        "15109 MiB",
        "22731 MiB",
    ]


def test_faults_can_be_injected(tmp_path: Path) -> None:
    machine = make_machine(tmp_path / "driver", [Gpu()])
    view = View(machine, machine)
    inject(machine, Fault("nvmlDeviceGetMemoryInfo", result=999))
    inject(machine, Fault("nvmlInit", nth=2, result=9))
    lines = view.python(
        "print(code(n.nvmlDeviceGetMemoryInfo, gpu), code(n.nvmlDeviceGetMemoryInfo, gpu).used)\n"
        "print(code(n.nvmlInit), n.nvmlDeviceGetCount()); n.nvmlShutdown()\n"
        "print(code(n.nvmlDeviceGetCount))\n"
    )
    assert lines == [
        "NVMLError_Unknown 0",
        "NVMLError_DriverNotLoaded 1",
        "NVMLError_Uninitialized",
    ]


def test_without_a_machine_the_driver_is_not_loaded(view: View, tmp_path: Path) -> None:
    program = f"import ctypes; print(ctypes.CDLL({str(SIMULATED)!r}).nvmlInit_v2())"
    out = view.run(sys.executable, "-c", program, CGPU_SIM_MACHINE=str(tmp_path / "machine"))
    assert out == "9\n"
