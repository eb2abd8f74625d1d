"""Asks NVML for what kind of GPU one is; part of the program ``probe.py``."""

from __future__ import annotations

import ctypes

from cgpu_node.facts.links import Pci

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cgpu_node.facts.links import Nvml

# The words of NVIDIA's tools for NVML's numbers.
_BRANDS = {
    1: "Quadro",
    2: "Tesla",
    3: "NVS",
    4: "Grid",
    5: "Geforce",
    6: "Titan",
    7: "NvidiaVApps",
    8: "NvidiaVPC",
    9: "NvidiaVCS",
    10: "NvidiaVWS",
    11: "NvidiaCloudGaming",
    12: "QuadroRTX",
    13: "NvidiaRTX",
    14: "Nvidia",
    15: "GeforceRTX",
    16: "TitanRTX",
}
_ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada Lovelace",
    9: "Hopper",
    10: "Blackwell",
}


def read_attributes(nvml: Nvml, handle: ctypes.c_void_p) -> dict[str, object]:
    """Return what the driver says of a GPU, as far as it does.

    Returns:
        ``brand`` and ``architecture`` as NVIDIA's tools call them; ``driverVersion``,
        ``cudaComputeCapability`` and ``cudaDriverVersion``, such as 535.1, 7.0 and 12.2;
        ``pciBusID``, such as 0000:3b:00.0.
    """
    found: dict[str, object] = {}
    brand, kind, version = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_int()
    major, minor, pci = ctypes.c_int(), ctypes.c_int(), Pci()
    release = ctypes.create_string_buffer(96)
    if nvml.try_call("nvmlSystemGetDriverVersion", release, ctypes.c_uint(len(release))) == 0:
        found["driverVersion"] = release.value.decode()
    if nvml.try_call("nvmlDeviceGetBrand", handle, ctypes.byref(brand)) == 0:
        found["brand"] = _BRANDS.get(brand.value, "Unknown")
    if nvml.try_call("nvmlDeviceGetArchitecture", handle, ctypes.byref(kind)) == 0:
        found["architecture"] = _ARCHITECTURES.get(kind.value, "Unknown")
    name = "nvmlDeviceGetCudaComputeCapability"
    if nvml.try_call(name, handle, ctypes.byref(major), ctypes.byref(minor)) == 0:
        found["cudaComputeCapability"] = f"{major.value}.{minor.value}"
    if nvml.try_call("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(version)) == 0:
        found["cudaDriverVersion"] = f"{version.value // 1000}.{version.value % 1000 // 10}"
    if nvml.try_call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(pci)) == 0:
        found["pciBusID"] = f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"
    return found


def is_in_mig_mode(nvml: Nvml, handle: ctypes.c_void_p) -> bool:
    """Return whether MIG mode is on, with instances or without."""
    current, pending = ctypes.c_uint(), ctypes.c_uint()
    modes = ctypes.byref(current), ctypes.byref(pending)
    return nvml.try_call("nvmlDeviceGetMigMode", handle, *modes) == 0 and current.value != 0
