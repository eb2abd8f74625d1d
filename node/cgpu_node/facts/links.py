"""Asks NVML what links the GPUs of this node; part of the program ``probe.py``."""

from __future__ import annotations

import ctypes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Protocol

    class Nvml(Protocol):
        """The driver's library."""

        def try_call(self, name: str, *arguments: object) -> int:
            """Call the driver and return its status."""

    Address = tuple[int, int, int]  # domain, bus and device on PCI

MOST_NVLINKS = 18  # of one GPU, on an H100


class Pci(ctypes.Structure):
    """The address of a GPU, as NVML has it."""

    _fields_ = (
        ("legacy", ctypes.c_char * 16),
        *((name, ctypes.c_uint) for name in ("domain", "bus", "device", "id", "subsystem")),
        ("bus_id", ctypes.c_char * 32),
    )


class LinkReader:
    """Reads the links of the GPUs that answer. Asks again only if other GPUs answer than before."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._asked: list[int] | None = None
        self._links: list[list[int | None]] = []

    def read_links(self, facts: Mapping[str, Any]) -> list[list[int | None]]:
        """Return the links of all pairs of the GPUs in ``facts``.

        Returns:
            For each pair: both indices; the level at which their paths over PCIe meet, as NVML
            numbers levels (None: NVML does not know it); and how many NVLinks are between them. For
            GPUs at NVSwitches, that is the number of the GPU with fewer NVLinks.
        """
        gpus = [gpu["index"] for gpu in facts["gpus"]]
        if gpus != self._asked:
            handles = {index: self._find_handle(index) for index in gpus}
            nvlinks = {index: self._count_nvlinks(each) for index, each in handles.items()}
            where = {index: self._find_address(each) for index, each in handles.items()}
            self._links = [
                [
                    one,
                    other,
                    self._find_level(handles[one], handles[other]),
                    _count_between(nvlinks[one], nvlinks[other], where[other], {*where.values()}),
                ]
                for one in gpus
                for other in gpus
                if one < other
            ]
            self._asked = gpus
        return self._links

    def _find_handle(self, index: int) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        name = "nvmlDeviceGetHandleByIndex_v2"
        self._nvml.try_call(name, ctypes.c_uint(index), ctypes.byref(handle))
        return handle

    def _find_address(self, handle: ctypes.c_void_p) -> Address | None:
        pci = Pci()
        if self._nvml.try_call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(pci)):
            return None
        return pci.domain, pci.bus, pci.device

    def _find_level(self, one: ctypes.c_void_p, other: ctypes.c_void_p) -> int | None:
        level = ctypes.c_uint()
        name = "nvmlDeviceGetTopologyCommonAncestor"
        failed = self._nvml.try_call(name, one, other, ctypes.byref(level))
        return None if failed else level.value

    def _count_nvlinks(self, handle: ctypes.c_void_p) -> dict[Address, int]:
        """Return how many active NVLinks a GPU has, by the address at their other ends."""
        found: dict[Address, int] = {}
        for link in range(MOST_NVLINKS):
            active, pci, number = ctypes.c_uint(), Pci(), ctypes.c_uint(link)
            failed = self._nvml.try_call(
                "nvmlDeviceGetNvLinkState", handle, number, ctypes.byref(active)
            )
            if failed or not active.value:
                continue
            name = "nvmlDeviceGetNvLinkRemotePciInfo_v2"
            if self._nvml.try_call(name, handle, number, ctypes.byref(pci)) == 0:
                address = pci.domain, pci.bus, pci.device
                found[address] = found.get(address, 0) + 1
        return found


def _count_between(
    one: dict[Address, int],
    other: dict[Address, int],
    there: Address | None,
    gpus: set[Address | None],
) -> int:
    """Return how many NVLinks lead from one GPU to another, straight or through common switches."""
    straight = one.get(there, 0) if there else 0
    switches = one.keys() & other.keys() - gpus
    through = min(sum(each[key] for key in switches) for each in (one, other))
    return straight + through
