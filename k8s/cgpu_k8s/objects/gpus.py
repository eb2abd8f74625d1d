"""Reads and writes a node's annotation ``cgpu/gpus``, by which its agent describes its GPUs.

The annotation is ``{"v":1,"mode":"cgpu","gpus":[{"uuid":"GPU-...","index":0,"mib":16160,
"cores":100,"slots":20,"healthy":true,"held":0,"held_slots":0}]}``. It also has
``"withheld":"why"`` while the node takes no more pods, and ``"links"`` in the format of
``links.py`` if the links are known. Unknown members are ignored, so that later versions can add
some.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from cgpu_env.errors import CgpuError, printable
from cgpu_k8s.objects.links import GpuLink, read_links, write_links
from cgpu_k8s.objects.pod_request import Part

if TYPE_CHECKING:
    from collections.abc import Iterable

VERSION = 1
UNIT_MIB = 1024
LONGEST = 64 << 10  # characters of the annotation
SHARE, CGPU, CORE_MEM = "share", "cgpu", "core_mem"  # how a node isolates containers
TOPOLOGY = "topology"  # the node gives whole GPUs, chosen by the links between them
MODES = (SHARE, CGPU, CORE_MEM, TOPOLOGY)
_UUID = re.compile(r"GPU-[A-Za-z0-9-]{1,128}")
_MOST = 1 << 40


class FactsError(CgpuError):
    """The annotation ``cgpu/gpus`` is invalid. The message, one sentence, names the member."""


class OfferedGpu(NamedTuple):
    """A GPU as a node offers it to pods, and its annotation describes it.

    Attributes:
        uuid: the driver's name of the GPU, which never changes.
        index: the driver's number of the GPU, which can change when the node restarts. It is shown
            to people, and breaks ties.
        mib: its memory as the driver reports it, in MiB.
        cores: its time, in hundredths.
        slots: how many containers may share it.
        healthy: whether a pod may be placed on it.
        held: units of memory that containers of no pod hold, such as those of docker.
        held_slots: slots that such containers hold, each with its part of the time.
    """

    uuid: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    mib: int
    cores: int = 100
    slots: int = 20
    healthy: bool = True
    held: int = 0
    held_slots: int = 0

    @property
    def units(self) -> int:
        """Return the GPU's memory in units of ``aliyun.com/gpu-mem``."""
        return self.mib // UNIT_MIB

    @property
    def allocatable(self) -> Part:
        """The part that is left for pods: the GPU without ``held`` and ``held_slots``."""
        time = -(-self.held_slots * self.cores // self.slots) if self.slots else 0
        return Part(self.units - self.held, self.cores - time, self.slots - self.held_slots)

    def mib_of(self, units: int) -> int:
        """Return the cap, in MiB, of a container that has ``units`` of the GPU's units.

        >>> OfferedGpu("GPU-1", 0, 16160).mib_of(2)
        2154
        """
        return units * self.mib // self.units

    def units_of(self, mib: int) -> int:
        """Return how many of the GPU's units ``mib`` MiB take, rounded up."""
        return -(-mib * self.units // self.mib)


class Facts(NamedTuple):
    """The GPUs of a node, as its agent writes them.

    Attributes:
        mode: the mode in force, one of MODES.
        gpus: the GPUs of the node.
        withheld: why the node takes no more pods, in one sentence; "" if it takes them.
        links: the links of all pairs of GPUs, as ``links.py`` orders them; () if unknown.
    """

    mode: str
    gpus: tuple[OfferedGpu, ...]
    withheld: str = ""
    links: tuple[GpuLink, ...] = ()


def write_facts(
    mode: str, gpus: Iterable[OfferedGpu], withheld: str = "", links: Iterable[GpuLink] = ()
) -> str:
    """Return the annotation; equal facts give equal text. ``links.py`` defines the links' order."""
    listed = [each._asdict() for each in sorted(gpus, key=lambda gpu: gpu.index)]
    more = {"withheld": withheld, "links": write_links(links)}
    known = {name: text for name, text in more.items() if text}
    return json.dumps({"v": VERSION, "mode": mode, "gpus": listed, **known}, separators=(",", ":"))


def read_facts(text: str) -> Facts:
    """Parse the annotation. Links that cannot be read count as unknown.

    Raises:
        FactsError: the text is too long, is not JSON or has another version, or a member is
            missing or wrong.
    """
    if len(text) > LONGEST:
        raise FactsError(f"{len(text)} characters: expected at most {LONGEST}")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise FactsError(f"{printable(text)}: expected JSON") from None
    if not isinstance(found, dict) or found.get("v") != VERSION:
        given = found.get("v") if isinstance(found, dict) else found
        raise FactsError(
            f"v={printable(str(given))}: expected version {VERSION}; upgrade this program"
        )
    mode, listed = found.get("mode"), found.get("gpus")
    if mode not in MODES:
        raise FactsError(f"mode={printable(str(mode))}: expected one of {', '.join(MODES)}")
    if not isinstance(listed, list):
        raise FactsError("gpus: expected a list")
    gpus = tuple(_read_gpu(each) for each in listed)
    for name in ("uuid", "index"):
        values = [getattr(each, name) for each in gpus]
        if len(set(values)) < len(values):
            raise FactsError(f"gpus: expected each {name} once")
    withheld = found.get("withheld", "")
    if not isinstance(withheld, str):
        raise FactsError(f"withheld: expected a sentence, got {type(withheld).__name__}")
    links = found.get("links")
    known = read_links(links, len(gpus)) if isinstance(links, str) else None
    return Facts(mode, gpus, printable(withheld, 400), known or ())


def _read_gpu(found: Any) -> OfferedGpu:  # noqa: ANN401 (JSON holds anything)
    if not isinstance(found, dict):
        raise FactsError("gpus: expected a list of objects")
    for name, fits in _ALLOWED.items():
        if not fits(found.get(name)):
            raise FactsError(f"gpus: {name}={printable(str(found.get(name)))} is not possible")
    return OfferedGpu(**{name: found[name] for name in OfferedGpu._fields})


def _allow_range(least: int, most: int = _MOST) -> Any:  # noqa: ANN401 (a function)
    return lambda value: type(value) is int and least <= value <= most


_ALLOWED = {
    "uuid": lambda value: isinstance(value, str) and bool(_UUID.fullmatch(value)),
    "index": _allow_range(0, 999),
    "mib": _allow_range(UNIT_MIB),
    "cores": _allow_range(0, 100),
    "slots": _allow_range(0, 999),
    "healthy": lambda value: isinstance(value, bool),
    "held": _allow_range(0),
    "held_slots": _allow_range(0, 999),
}
