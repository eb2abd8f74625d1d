"""The links between a node's GPUs, as its annotation has them: kinds, and no scores.

``"s2yym-n18"`` are the six pairs of four GPUs, in the order of their indices: 0 with 1, 2 and 3, 1
with 2 and 3, 2 with 3. A letter names where the paths of two GPUs over PCIe meet, a number behind
it counts the NVLinks between them; an NVSwitch links each of its GPUs with all others alike.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# Where paths over PCIe meet, by NVML's names: on one board, at one switch, at several switches, at
# one host bridge, in one NUMA node, anywhere in the system; or the driver does not know.
INTERNAL, SINGLE, MULTIPLE, HOST_BRIDGE, NODE, SYSTEM = "i", "s", "m", "h", "n", "y"
UNKNOWN = "-"
LEVELS = {0: INTERNAL, 10: SINGLE, 20: MULTIPLE, 30: HOST_BRIDGE, 40: NODE, 50: SYSTEM}  # NVML's
_PAIR = re.compile(r"([ismhny-])([0-9]{0,3})")


class GpuLink(NamedTuple):
    """The link of two GPUs: a kind of path over PCIe, and how many NVLinks."""

    kind: str = UNKNOWN
    nvlinks: int = 0


def arrange_links(
    gpus: Sequence[int], links: Mapping[tuple[int, int], GpuLink]
) -> tuple[GpuLink, ...]:
    """Return the links of all pairs of GPUs in order, given the known ones by two indices.

    Returns:
        () if nothing is known of any pair.
    """
    ordered = sorted(gpus)
    found = tuple(
        links.get((one, other), GpuLink())
        for at, one in enumerate(ordered)
        for other in ordered[at + 1 :]
    )
    return found if any(link != GpuLink() for link in found) else ()


def write_links(links: Iterable[GpuLink]) -> str:
    """Write the links of all pairs, in the order that the module describes.

    >>> write_links([GpuLink("s", 2), GpuLink("y"), GpuLink()])
    's2y-'
    """
    return "".join(f"{kind}{nvlinks or ''}" for kind, nvlinks in links)


def read_links(text: str, gpus: int) -> tuple[GpuLink, ...] | None:
    """Return the links of all pairs of some GPUs; None if the text has not one of each pair.

    >>> read_links("s2", 2), read_links("s2", 3)
    ((GpuLink(kind='s', nvlinks=2),), None)
    """
    found = tuple(GpuLink(kind, int(count or 0)) for kind, count in _PAIR.findall(text))
    whole = sum(match.end() - match.start() for match in _PAIR.finditer(text)) == len(text)
    return found if whole and len(found) == gpus * (gpus - 1) // 2 else None
