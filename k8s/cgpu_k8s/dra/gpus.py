"""Observes the GPUs of the node, for its ResourceSlice."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from cgpu_env.errors import CgpuError
from cgpu_k8s.dra.inquiry import Inquiry
from cgpu_k8s.dra.slices import GpuProblem, SliceGpu
from cgpu_node.facts.discovery import read_attributes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from cgpu_k8s.node.driver import Driver
    from cgpu_k8s.node.node_resources import DriverGpu

_PATIENCE = 4.0  # seconds that a check of all GPUs waits for the attributes of new ones
_PCI = "/sys/bus/pci/devices"
_ROOT = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")
_SILENT, _UNLISTED = "driver-does-not-answer", "driver-does-not-list-it"
_NO_LABEL = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_LABEL = 63


class GpuFacts:
    """The GPUs of the node, with what the driver and the kernel say of them.

    Args:
        driver: of the node's GPUs.
        find_barrier: returns why containers cannot get GPUs; "": they can.
        find_conflict: returns who else offers or has one of these GPUs; "": nobody.
        folder: returns the directory of the driver's libraries; it may raise CgpuError.
        devices: the kernel's folder of PCI devices.

    Attributes:
        answering: UUIDs of the GPUs that answered when last observed; None: not observed yet.
    """

    def __init__(
        self,
        driver: Driver,
        find_barrier: Callable[[], Awaitable[str]],
        find_conflict: Callable[[Collection[str]], Awaitable[str]],
        folder: Callable[[], str],
        devices: str = _PCI,
    ) -> None:
        self._driver, self._devices = driver, devices
        self._find_barrier, self._find_conflict = find_barrier, find_conflict
        self._attributes = Inquiry(
            lambda: read_attributes(folder()), _PATIENCE, "what kind of GPUs the node has"
        )
        self._known: dict[str, SliceGpu] = {}  # by UUID, as they were when they answered
        self._current: frozenset[str] = frozenset()  # described since they came back
        self.answering: frozenset[str] | None = None

    async def observe(self) -> list[SliceGpu] | None:
        """Return the GPUs with their problems; None while the driver starts.

        A GPU that has answered before stays in the list when it no longer answers.

        Raises:
            CgpuError: containers would not get GPUs; or others offer or have one; or no GPU has
                ever answered.
        """
        await self.check_barrier()
        try:
            found = await self._driver.list_gpus()
        except CgpuError as error:
            self._current = frozenset()
            if not self._known:
                raise
            problem = GpuProblem(_SILENT, str(error))
            return [gpu._replace(problem=problem) for gpu in self._known.values()]
        if found is None:
            return None
        seen = [gpu for gpu in found if not gpu.lost and not gpu.in_mig_mode]
        self.answering = frozenset(gpu.uuid for gpu in seen)
        for gpu in found:
            if gpu.in_mig_mode:
                self._known.pop(gpu.uuid, None)
        unknown = await self._describe(seen)
        self._forget_renumbered(gpu.index for gpu in found if not gpu.lost)
        absent = [gpu for uuid, gpu in self._known.items() if uuid not in self.answering]
        if absent or any(gpu.lost for gpu in found):
            self._driver.close()  # only a new session of the driver sees a GPU that is back
        await self.check_conflict(self.answering)  # last, as it may change meanwhile
        return [
            *(self._known[gpu.uuid] for gpu in seen if gpu.uuid in self._known),
            *unknown,
            *_list_absent(absent, found),
            *(_refuse_mig(gpu) for gpu in found if gpu.in_mig_mode),
        ]

    def _forget_renumbered(self, taken: Iterable[int]) -> None:
        """Forget absent GPUs whose numbers others have: they would have one name in the slice."""
        answering, numbers = self.answering or frozenset(), {*taken}
        self._known = {
            uuid: gpu
            for uuid, gpu in self._known.items()
            if uuid in answering or gpu.index not in numbers
        }

    async def check_barrier(self) -> None:
        """Refuse if containers cannot get GPUs.

        Raises:
            CgpuError: they cannot; a sentence says why.
        """
        barrier = await self._find_barrier()
        if barrier:
            raise CgpuError(barrier)

    async def check_conflict(self, uuids: Collection[str]) -> None:
        """Refuse if others offer one of these GPUs too, or their pods have it.

        Raises:
            CgpuError: it is so; a sentence says who.
        """
        conflict = await self._find_conflict(uuids)
        if conflict:
            raise CgpuError(conflict)

    async def _describe(self, seen: Sequence[DriverGpu]) -> list[SliceGpu]:
        """Read the attributes of GPUs that are new or back; return those still without.

        The other GPUs are offered meanwhile, however long that takes.
        """
        uuids = frozenset(gpu.uuid for gpu in seen)
        attributes: Mapping[str, Mapping[str, str]] = {}
        why = "the driver does not say what kind of GPU it is"
        if uuids - self._current:
            try:
                attributes = await self._attributes.ask()
            except (CgpuError, OSError) as error:
                why = str(error)
        self._current = uuids & (self._current | attributes.keys())
        for gpu in seen:
            facts, known = attributes.get(gpu.uuid), self._known.get(gpu.uuid)
            device = SliceGpu(gpu.index, gpu.uuid, gpu.name, gpu.mib)
            if facts is not None:
                found = device._replace(facts=facts)
                root, numa_node = self._find_place(facts)
                self._known[gpu.uuid] = found._replace(pcie_root=root, numa_node=numa_node)
            elif known is not None:  # its index may have changed
                self._known[gpu.uuid] = SliceGpu(*device[:4], *known[4:])
        return [_withhold(gpu, why) for gpu in seen if gpu.uuid not in self._known]

    def _find_place(self, known: Mapping[str, str]) -> tuple[str, int | None]:
        """Return the root of a GPU's PCIe bus, and its NUMA node; "" and None: not known."""
        path = Path(self._devices, known.get("pciBusID", "-"))
        roots = [each for each in path.resolve().parts if _ROOT.fullmatch(each)]
        number = -1
        with contextlib.suppress(OSError, ValueError):
            number = int((path / "numa_node").read_text(encoding="ascii"))
        return next(iter(roots), ""), number if number >= 0 else None


def _list_absent(absent: Sequence[SliceGpu], found: Sequence[DriverGpu]) -> list[SliceGpu]:
    """Return the GPUs that do not answer: those that once did, and those that never have.

    If the driver no longer names a GPU's UUID, the GPU is known by its index, which stays as long
    as the driver counts the GPU.
    """
    rest = [gpu for gpu in found if gpu.lost]
    devices = []
    for gpu in absent:
        same = [each for each in rest if _is_same(each, gpu)]
        rest = [each for each in rest if each not in same]
        words = same[0].lost if same else "the driver does not list it any more"
        value = _make_label(words) if same else _UNLISTED
        devices.append(gpu._replace(problem=GpuProblem(value, _say_lost(gpu, words))))
    return devices + [_withhold(gpu, gpu.lost) for gpu in rest]


def _is_same(lost: DriverGpu, gpu: SliceGpu) -> bool:
    return lost.uuid == gpu.uuid if lost.uuid else lost.index == gpu.index


def _withhold(gpu: DriverGpu, why: str) -> SliceGpu:
    problem = GpuProblem("", _say_lost(gpu, why))
    return SliceGpu(gpu.index, gpu.uuid, gpu.name, gpu.mib, problem=problem)


def _say_lost(gpu: DriverGpu | SliceGpu, why: str) -> str:
    return f"GPU {gpu.index} ({gpu.uuid or 'UUID unknown'}) does not answer: {why}"


def _refuse_mig(gpu: DriverGpu) -> SliceGpu:
    sentence = (
        f"GPU {gpu.index} ({gpu.uuid}) is in MIG mode, and cgpu shares whole GPUs: it is not"
        f" offered; nvidia-smi -i {gpu.index} -mig 0"
    )
    return SliceGpu(gpu.index, gpu.uuid, gpu.name, gpu.mib, problem=GpuProblem("", sentence))


def _make_label(words: str) -> str:
    """Return the driver's words in the form that the value of a taint, as of a label, must have.

    >>> _make_label("GPU is lost (error 15); nvidia-smi --gpu-reset -i 1, or reboot")
    'GPU-is-lost-error-15'
    """
    value = _NO_LABEL.sub("-", words.partition(";")[0])[:_LONGEST_LABEL].strip("-._")
    return value or "lost"
