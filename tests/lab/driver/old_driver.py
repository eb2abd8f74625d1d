"""Simulated drivers of earlier releases: the same code, without the names that came later.

The simulated libcuda knows with which CUDA version each name came, as the real driver tells it by
cuGetProcAddress. Of NVML only the names are listed that the project calls or exports. Both agree
with the symbol tables of the real 418.226, 450.248 and 460.106. A name that is hidden is in the
file's symbol table still, as one that the library does not define.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from elftools.elf.elffile import ELFFile

from cgpu_sim import make_driver_dir
from lab.driver.entry_points import ROOT

if TYPE_CHECKING:
    from collections.abc import Container, Sequence
    from pathlib import Path

    from cgpu_sim import Gpu

CUDA, NVML = "libcuda.so.1", "libnvidia-ml.so.1"
_SYMBOL_BYTES, _SHNDX = 24, slice(6, 16)  # of Elf64_Sym; st_shndx, and st_value after it
_LATER_THAN_460 = {
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetConfComputeProtectedMemoryUsage",
    "nvmlDeviceGetDynamicPstatesInfo",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetJpgUtilization",
    "nvmlDeviceGetMPSComputeRunningProcesses_v2",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetOfaUtilization",
    "nvmlDeviceGetProcessesUtilizationInfo",
    "nvmlDeviceGetRunningProcessDetailList",
    "nvmlGpmMigSampleGet",
    "nvmlGpmSampleGet",
}
_LATER_THAN_418 = _LATER_THAN_460 | {
    "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetGraphicsRunningProcesses_v2",
}


class Release(NamedTuple):
    """A driver release, the CUDA version that came with it, and its NVML."""

    version: str
    cuda: int
    private_slots: int
    nvml_lacks: set[str]


RELEASES = (
    Release("418.226.00", 10010, 182, _LATER_THAN_418),
    Release("450.248.02", 11000, 192, _LATER_THAN_460),
    Release("460.106.00", 11020, 198, _LATER_THAN_460),
)


def cuda_names_after(version: int) -> set[str]:
    """What the simulated libcuda exports that came with a CUDA version after ``version``."""
    pattern = r"^ENTRY(?:_PER_THREAD)?\(\w+, (\d+), (\w+)(?:, (\w+))?\)"
    names = set()
    for path in (ROOT / "tests" / "sim" / "cuda").glob("entry_points_*.def"):
        for since, name, suffix in re.findall(pattern, path.read_text(), flags=re.MULTILINE):
            if int(since) > version:
                names |= {name, name + suffix}
    return names


def hide(library: Path, names: Container[str]) -> None:
    """Make ``library`` one that does not define ``names``."""
    with library.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".dynsym")
        start = table["sh_offset"]
        rows = [i for i, symbol in enumerate(table.iter_symbols()) if symbol.name in names]
    data = bytearray(library.read_bytes())
    for row in rows:
        at = start + row * _SYMBOL_BYTES
        data[at + _SHNDX.start : at + _SHNDX.stop] = bytes(10)
    library.write_bytes(data)


def _end_private_table(nvml: Path, slots: int) -> None:
    """Say in its slot 0 that NVML's private table has ``slots`` slots."""
    with nvml.open("rb") as file:
        elf = ELFFile(file)
        (table,) = elf.get_section_by_name(".dynsym").get_symbol_by_name("cgpu_sim_private_table")
        (at,) = elf.address_offsets(table["st_value"], 8)
    data = bytearray(nvml.read_bytes())
    data[at : at + 8] = (slots * 8).to_bytes(8, "little")
    nvml.write_bytes(data)


def make_old_driver(path: Path, release: Release, gpus: Sequence[Gpu]) -> Path:
    """A driver directory as ``make_driver_dir`` makes it, of an old driver."""
    folder = make_driver_dir(path, gpus, cuda_version=release.cuda, driver_version=release.version)
    hide(folder / CUDA, cuda_names_after(release.cuda))
    hide(folder / NVML, release.nvml_lacks)
    _end_private_table(folder / NVML, release.private_slots)
    return folder
