"""What the audit saw last, and whose the time of a GPU was by the driver's figures."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from cgpu_server.state.limits import is_measured

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cgpu_node.shares.record import Record
    from cgpu_server.audit.driver_probe import Reading
    from cgpu_server.audit.process_owners import Process

    Place = tuple[str, int]  # a container's directory, and which of its GPUs

_WHOLE = 100  # percent


class Look(NamedTuple):
    """What the audit last saw.

    Attributes:
        told: whether the driver says how much each process holds, by the GPU's UUID.
        foreign_bytes: what processes of no container hold, likewise.
        bypasses: how many findings there were, by container and place of its GPU.
        utilisation: how busy the driver says that a GPU is, in percent, where it says so.
        shares: how busy it says that a container's processes kept its GPU, likewise.
    """

    told: dict[str, bool]
    foreign_bytes: dict[str, int]
    bypasses: dict[Place, int]
    utilisation: dict[str, int]
    shares: dict[Place, int]

    def is_shared(self, uuid: str, containers: int) -> bool:
        """Whether a GPU with so many containers may be kept busy by others than one of them."""
        return containers > 1 or not self.told.get(uuid) or bool(self.foreign_bytes.get(uuid))


NOTHING = Look({}, {}, {}, {}, {})


def asked_by_process(last: Look, records: Sequence[Record]) -> set[str]:
    """The GPUs of which to ask the driver: the GPU's own figure does not say whose it is there."""
    there = Counter(share.uuid for record in records for share in record.gpus)
    return {
        share.uuid
        for record in records
        for place, share in enumerate(record.gpus)
        if last.is_shared(share.uuid, there[share.uuid]) and not is_measured(record, place)
    }


def by_container(
    readings: Mapping[str, Reading],
    whose: Mapping[int, tuple[Process, Record | None]],
    records: Sequence[Record],
) -> dict[Place, int]:
    """Percent of their GPUs, by what their processes had, where the driver was asked and tells."""
    found = {}
    for record in records:
        for place, share in enumerate(record.gpus):
            reading = readings.get(share.uuid)
            if reading is not None and reading.busy is not None:
                own = (n for pid, n in reading.busy.items() if _is_of(whose.get(pid), record))
                found[record.directory, place] = min(sum(own), _WHOLE)
    return found


def _is_of(known: tuple[Process, Record | None] | None, record: Record) -> bool:
    return known is not None and known[1] is record
