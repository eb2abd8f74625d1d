"""Facts about the libraries' interfaces: symbols, look-ups, export tables."""

from __future__ import annotations

import csv
import ctypes
from ctypes import byref, c_int, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from gpu.check import Finding, NotRunError, check, ordinal
from gpu.facts import elf
from gpu.interface.driver import Driver
from gpu.interface.nvml import Nvml

ROOT = Path(__file__).resolve().parents[3]
VERSIONS = (4000, 7000, 8000, 10010, 11000, 11020, 11040, 11080, 12000, 12040, 12090, 13000)
NOT_FOUND, TOO_OLD = 1, 2
_TABLE_ID = bytes.fromhex("c4fe3e6cc98f6c4ea327ee696e12f7c4")
_KNOWN_TABLES = ("535", "550")  # drivers whose slots 213 to 215 were seen in use
_SLOTS = (213, 214, 215)
_ENTRY = 4128  # bytes of an entry of the private lists


def _classified(path: str) -> set[str]:
    with (ROOT / path).open(newline="") as file:
        return {row["name"] for row in csv.DictReader(file)}


def _unclassified(library: Path, table: str, prefix: str) -> Finding:
    names = {name for name in elf.exported(library) if name.startswith(prefix)}
    unknown = sorted(names - _classified(table))
    measured = {"library": str(library), "exports": len(names), "in no class": unknown}
    return Finding(not unknown and bool(names), measured)


@check("facts")
def libcuda_exports_are_classified() -> Finding:
    """Every function that libcuda exports is in shim/driver_entry_points.csv."""
    library = elf.path_of(Driver().library, "cuInit")
    return _unclassified(library, "shim/driver_entry_points.csv", "cu")


@check("facts")
def nvml_exports_are_classified() -> Finding:
    """Every function that NVML exports is in shim/nvml/entry_points.csv."""
    library = elf.path_of(ctypes.CDLL("libnvidia-ml.so.1"), "nvmlInit_v2")
    return _unclassified(library, "shim/nvml/entry_points.csv", "nvml")


def _look_up(driver: Driver, name: str, version: int, flags: int) -> tuple[int, int | None, int]:
    """Status of the call, address, status of the symbol (-1 where the driver has only v1)."""
    address, found = c_void_p(), c_int(-1)
    words = (name.encode(), byref(address), c_int(version), c_uint64(flags))
    if driver.has("cuGetProcAddress_v2"):
        status = driver.status("cuGetProcAddress_v2", *words, byref(found))
    else:
        driver.needs("cuGetProcAddress")
        status = driver.status("cuGetProcAddress", *words)
    return status, address.value, found.value


def _export(driver: Driver, name: str) -> int | None:
    return ctypes.cast(getattr(driver.library, name), c_void_p).value if driver.has(name) else None


def _exports(driver: Driver) -> dict[int, str]:
    names = elf.exported(elf.path_of(driver.library, "cuInit"))
    return {address: name for name in names if (address := _export(driver, name)) is not None}


@check("facts")
def every_looked_up_address_is_an_export() -> Finding:
    """Every address that cuGetProcAddress returns is that of an exported symbol."""
    driver = Driver()
    driver.init()
    exports, names = _exports(driver), _classified("shim/driver_entry_points.csv")
    asked, foreign = 0, set()
    for name in sorted(names):
        for version in VERSIONS:
            for flags in (0, 1, 2):
                _, address, _ = _look_up(driver, name, version, flags)
                asked += address is not None
                if address is not None and address not in exports:
                    foreign.add(name)
    return Finding(asked > 0 and not foreign, {"addresses": asked, "not exported": sorted(foreign)})


@check("facts")
def look_ups_take_base_names_only() -> Finding:
    """cuGetProcAddress takes base names only.

    It finds cuMemAlloc, giving cuMemAlloc_v2, and neither cuMemAlloc_v2 nor cuLaunchKernel_ptsz.
    """
    driver = Driver()
    driver.init()
    base = _look_up(driver, "cuMemAlloc", 12000, 0)
    versioned = _look_up(driver, "cuMemAlloc_v2", 12000, 0)
    threaded = _look_up(driver, "cuLaunchKernel_ptsz", 12000, 0)
    holds = base[1] == _export(driver, "cuMemAlloc_v2") and not versioned[1] and not threaded[1]
    measured = {"cuMemAlloc_v2": [versioned[0], versioned[2]], "cuLaunchKernel_ptsz": threaded[0]}
    return Finding(holds, measured)


@check("facts")
def flag_2_gives_the_per_thread_stream_variant() -> Finding:
    """cuGetProcAddress with flag 2 gives cuLaunchKernel_ptsz and cuMemcpyHtoDAsync_v2_ptsz."""
    driver = Driver()
    driver.init()
    pairs = {
        "cuLaunchKernel": "cuLaunchKernel_ptsz",
        "cuMemcpyHtoDAsync": "cuMemcpyHtoDAsync_v2_ptsz",
    }
    same = {
        name: _look_up(driver, name, 12000, 2)[1] == _export(driver, variant)
        for name, variant in pairs.items()
    }
    return Finding(all(same.values()), {"same address": same})


@check("facts")
def a_version_too_old_is_no_error() -> Finding:
    """cuGetProcAddress of a symbol newer than the version asked gives 0, NULL and status 2.

    Of an unknown symbol it gives NULL and status 1.
    """
    driver = Driver()
    driver.init()
    driver.needs("cuGetProcAddress_v2")
    old = _look_up(driver, "cuMemAllocAsync", 11000, 0)
    unknown = _look_up(driver, "cuNoSuchEntryPoint", 12000, 0)
    measured = {"too old": list(old), "unknown": list(unknown)}
    holds = old == (0, None, TOO_OLD) and unknown[1:] == (None, NOT_FOUND)
    return Finding(holds, measured)


@check("facts")
def libcuda_calls_no_export_of_its_own() -> Finding:
    """libcuda never calls its own exports through the PLT."""
    found = sorted(elf.own_calls(elf.path_of(Driver().library, "cuInit")))
    return Finding(not found, {"called": found})


@check("facts", simulated=False)
def nvml_calls_exports_of_its_own() -> Finding:
    """NVML calls at most 30 of its own exports through the PLT, nvmlInitWithFlags among them."""
    found = elf.own_calls(elf.path_of(ctypes.CDLL("libnvidia-ml.so.1"), "nvmlInit_v2"))
    holds = len(found) <= 30 and "nvmlInitWithFlags" in found
    return Finding(holds, {"count": len(found), "called": sorted(found)})


def _private_table(nvml: Nvml) -> tuple[Any, int]:
    """The table that nvidia-smi uses, and how many slots it has."""
    table = ctypes.POINTER(c_uint64)()
    try:
        nvml.call("nvmlInternalGetExportTable", byref(table), _TABLE_ID)
    except (AttributeError, OSError) as error:
        raise NotRunError(f"no private table: {error}") from None
    return table, int(table[0]) // 8


def _private_pids(slot: int, gpu: c_void_p) -> list[int]:
    count, entries = ctypes.c_uint(512), ctypes.create_string_buffer(512 * _ENTRY)
    function = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p)(slot)
    status = function(gpu, ctypes.addressof(count), ctypes.addressof(entries))
    if status != 0:
        raise OSError(f"a private list gave error {status}")
    return [ctypes.c_uint.from_buffer(entries, i * _ENTRY).value for i in range(count.value)]


@check("facts")
def nvmls_private_lists_are_slots_213_to_215() -> Finding:
    """Slots 213 to 215 of nvidia-smi's private NVML table list the processes, slot 0 is its size.

    The slots are called on drivers 535 and 550 only: elsewhere they might do something else.
    """
    driver = Driver()
    driver.start()
    nvml = Nvml()
    gpu, version = nvml.gpu_of(driver.uuid()), nvml.driver_version()
    table, slots = _private_table(nvml)
    measured: dict[str, Any] = {"driver": version, "slots": slots}
    if not max(_SLOTS) < slots <= 1024:
        return Finding(holds=False, measured=measured)
    if version.split(".")[0] not in _KNOWN_TABLES:
        raise NotRunError(
            f"driver {version} has {slots} slots, which were not called; the check"
            " nvidia_smi_shows_the_share_and_no_stranger covers it through nvidia-smi"
        )
    lists = {slot: _private_pids(int(table[slot]), gpu) for slot in _SLOTS}
    public = sorted(nvml.processes(gpu))
    measured |= {"private": lists, "public": public, "ordinal": ordinal()}
    return Finding(sorted(lists[213]) == public and bool(public), measured)
