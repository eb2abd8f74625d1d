"""Reads and writes the links between a node's GPUs, as its annotation lists them.

For example, ``"s2yym-n18"`` lists the six pairs of four GPUs in the order of their indices: 0-1,
0-2, 0-3, 1-2, 1-3, 2-3. A letter names the point where the PCIe paths of two GPUs meet. The number
after it counts the NVLinks between them. GPUs at an NVSwitch are linked with each other equally.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# The point where two PCIe paths meet, by NVML's names: on one board, at one switch, at several
# switches, at one host bridge, in one NUMA node, or anywhere in the system.
INTERNAL, SINGLE, MULTIPLE, HOST_BRIDGE, NODE, SYSTEM = "i", "s", "m", "h", "n", "y"
UNKNOWN = "-"  # the driver does not know
# The values of NVML's nvmlGpuTopologyLevel_t.
LEVELS = {0: INTERNAL, 10: SINGLE, 20: MULTIPLE, 30: HOST_BRIDGE, 40: NODE, 50: SYSTEM}
_PAIR = re.compile(r"([ismhny-])([0-9]{0,3})")


class GpuLink(NamedTuple):
    """The link between two GPUs: the kind of their PCIe path, and their number of NVLinks."""

    kind: str = UNKNOWN
    nvlinks: int = 0


def arrange_links(
    gpus: Sequence[int], links: Mapping[tuple[int, int], GpuLink]
) -> tuple[GpuLink, ...]:
    """Return the links of all pairs of GPUs, in the order that the module describes.

    Args:
        gpus: the indices of the GPUs.
        links: the known links, by two indices in ascending order.

    Returns:
        The links, or () if no link is known.
    """
    ordered = sorted(gpus)
    found = tuple(
        links.get((one, other), GpuLink())
        for at, one in enumerate(ordered)
        for other in ordered[at + 1 :]
    )
    return found if any(link != GpuLink() for link in found) else ()


def write_links(links: Iterable[GpuLink]) -> str:
    """Return the text of the links of all pairs, in the order that the module describes.

    >>> write_links([GpuLink("s", 2), GpuLink("y"), GpuLink()])
    's2y-'
    """
    return "".join(f"{kind}{nvlinks or ''}" for kind, nvlinks in links)


def read_links(text: str, gpus: int) -> tuple[GpuLink, ...] | None:
    """Return the links of all pairs of ``gpus`` GPUs; None unless the text has one for each pair.

    >>> read_links("s2", 2), read_links("s2", 3)
    ((GpuLink(kind='s', nvlinks=2),), None)
    """
    found = tuple(GpuLink(kind, int(count or 0)) for kind, count in _PAIR.findall(text))
    whole = sum(match.end() - match.start() for match in _PAIR.finditer(text)) == len(text)
    return found if whole and len(found) == gpus * (gpus - 1) // 2 else None
