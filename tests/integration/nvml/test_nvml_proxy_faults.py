"""The NVML proxy fails closed: without limits or ledger, nothing of the GPU is shown."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.driver.nvml_base import T4_MIB, Base, Gpu, View, lay_out, make_machine
from lab.driver.real_driver import real_nvidia_smi

pytestmark = pytest.mark.integration

TWO = (Gpu(), Gpu("NVIDIA A10", 22731, 1))
FIGURES = (
    "for f in 'MemoryInfo', 'ComputeRunningProcesses', 'UtilizationRates', 'AccountingPids':\n"
    "    print(code(getattr(n, 'nvmlDeviceGet' + f), gpu))\n"
)


def corrupt(offset: int, value: bytes) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(value)

    return change


def truncate(size: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, size)


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


FAULTS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "limits missing": ("limits", Path.unlink),
    "limits of another format": ("limits", corrupt(0, b"XXXX")),
    "limits of another version": ("limits", corrupt(4, b"\x09")),
    "limits of another size": ("limits", corrupt(8, b"\x01\x00\x00\x00")),
    "limits with too many GPUs": ("limits", corrupt(12, b"\xff\xff")),
    "limits cut short": ("limits", truncate(100)),
    "limits a directory": ("limits", make_directory),
    "ledger missing": ("ledger", Path.unlink),
    "ledger of another format": ("ledger", corrupt(0, b"XXXX")),
    "ledger of another release": ("ledger", corrupt(4, b"\x63")),
    "ledger empty": ("ledger", truncate(0)),
}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_machine(tmp_path_factory.mktemp("sim") / "driver", TWO)


@pytest.fixture
def base(machine: Path, tmp_path: Path) -> Base:
    return lay_out(tmp_path / "base", machine, [Gpu().limited(6, 15)])


@pytest.mark.parametrize("fault", FAULTS)
def test_without_limits_or_ledger_no_figure_is_shown(fault: str, base: Base) -> None:
    name, break_it = FAULTS[fault]
    break_it(base.path / name)
    lines = base.view.python(FIGURES)
    # The simulated driver's accounting is off: its empty list is replaced by the error too.
    assert lines == ["NVMLError_Unknown"] * 4
    out = base.view.run(real_nvidia_smi())
    assert not re.search(rf"{T4_MIB}|MiB /", out)


def test_a_gpu_that_is_not_in_the_limits_is_not_shown(base: Base) -> None:
    lines = base.view.python("gpu = n.nvmlDeviceGetHandleByIndex(1)\n" + FIGURES)
    assert lines == ["NVMLError_NoPermission"] * 4
    lines = base.view.python("print(n.nvmlDeviceGetMemoryInfo(gpu).used)")
    assert lines == ["0"]


def test_a_ledger_that_goes_away_is_not_an_empty_one(base: Base) -> None:
    lines = base.view.python(
        "print(n.nvmlDeviceGetMemoryInfo(gpu).used)\n"
        f"os.unlink({str(base.path / 'ledger')!r}); print(code(n.nvmlDeviceGetMemoryInfo, gpu))\n"
    )
    assert lines == ["0", "NVMLError_Unknown"]


def test_without_the_real_library_nothing_loads(base: Base) -> None:
    (base.path / "real" / "libnvidia-ml.so.1").unlink()
    with pytest.raises(AssertionError, match="NVMLError_LibraryNotFound"):
        base.view.python("pass")


def test_gpus_are_told_apart_by_uuid_not_by_order(machine: Path, tmp_path: Path) -> None:
    limits = [TWO[1].limited(3, 15), TWO[0].limited(6, 15)]
    base = lay_out(tmp_path / "swapped", machine, limits)
    lines = base.view.python(
        "for i in 0, 1, 0:\n"
        "    print(n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(i)).total)\n"
    )
    caps = [str(gpu.cap_bytes) for gpu in (limits[1], limits[0], limits[1])]
    assert lines == caps


def test_the_plain_driver_shows_everything(machine: Path) -> None:
    """What the tests above would see without the proxy."""
    lines = View(machine, machine).python("print(n.nvmlDeviceGetMemoryInfo(gpu).total >> 20)")
    assert lines == [str(T4_MIB)]
