"""Observes the GPUs of the node, for its ResourceSlice."""

from __future__ import annotations

import asyncio
import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from cgpu_env.errors import CgpuError
from cgpu_k8s.dra.slices import SliceGpu
from cgpu_node.facts.discovery import read_attributes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from cgpu_k8s.node.driver import Driver

_PCI = "/sys/bus/pci/devices"
_ROOT = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")


class GpuFacts:
    """The GPUs that answer, with what the driver and the kernel say of them.

    Args:
        driver: of the node's GPUs.
        find_barrier: finds what keeps GPUs from containers; "": nothing.
        folder: finds the directory of the driver's libraries; it may raise CgpuError.
        devices: the kernel's folder of PCI devices.

    Attributes:
        answering: UUIDs of the GPUs that answered when they were observed last; None: they were
            not observed yet.
    """

    def __init__(
        self,
        driver: Driver,
        find_barrier: Callable[[], Awaitable[str]],
        folder: Callable[[], str],
        devices: str = _PCI,
    ) -> None:
        self._driver, self._find_barrier = driver, find_barrier
        self._folder, self._devices = folder, devices
        self._known: Mapping[str, Mapping[str, str]] = {}
        self.answering: frozenset[str] | None = None

    async def observe(self) -> list[SliceGpu] | None:
        """Return the GPUs that answer; None while the driver starts.

        Raises:
            CgpuError: the driver does not answer, or containers would not get GPUs.
        """
        await self.check_barrier()
        found = await self._driver.list_gpus()
        if found is None:
            return None
        seen = [gpu for gpu in found if not gpu.lost]
        if len(seen) < len(found):
            self._driver.close()  # only a new session of the driver sees a GPU that is back
        self.answering = frozenset(gpu.uuid for gpu in seen)
        if self.answering != self._known.keys():
            self._known = await asyncio.to_thread(read_attributes, self._folder())
        return [
            SliceGpu(gpu.index, gpu.uuid, gpu.name, gpu.mib, known, *self._find_place(known))
            for gpu in seen
            if (known := self._known.get(gpu.uuid)) is not None
        ]

    async def check_barrier(self) -> None:
        """Refuse if something keeps GPUs from containers.

        Raises:
            CgpuError: a sentence says what.
        """
        barrier = await self._find_barrier()
        if barrier:
            raise CgpuError(barrier)

    def _find_place(self, known: Mapping[str, str]) -> tuple[str, int | None]:
        """Return the root of a GPU's PCIe bus, and the NUMA node that it is at."""
        path = Path(self._devices, known.get("pciBusID", "-"))
        roots = [each for each in path.resolve().parts if _ROOT.fullmatch(each)]
        number = -1
        with contextlib.suppress(OSError, ValueError):
            number = int((path / "numa_node").read_text(encoding="ascii"))
        return next(iter(roots), ""), number if number >= 0 else None
