"""The audit's last snapshot, and the containers that used a GPU by the driver's figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cgpu_node.shares.record import Record
from cgpu_server.audit.driver_probe import Reading
from cgpu_server.audit.process_owners import HostProcess
from cgpu_server.audit.verdict import Tenant
from cgpu_server.state.limits import is_measured

_WHOLE = 100  # percent


class Snapshot(NamedTuple):
    """The figures that the audit last read.

    Attributes:
        readable: whether the driver reports how much each process holds, by the GPU's UUID.
        foreign_bytes: what processes outside containers hold, by the GPU's UUID.
        bypasses: the number of bypasses found, by container and GPU.
        utilisation: the driver's figure of how busy a GPU is, in percent, by the GPU's UUID.
        shares: the driver's figure of how busy a container's processes keep the GPU, in percent.
        used_bytes: what is in use of a GPU, by its UUID.
    """

    readable: dict[str, bool]
    foreign_bytes: dict[str, int]
    bypasses: dict[Tenant, int]
    utilisation: dict[str, int]
    shares: dict[Tenant, int]
    used_bytes: Mapping[str, int] = {}

    def is_shared(self, uuid: str, containers: int) -> bool:
        """Whether something other than one of ``containers`` may keep the GPU busy."""
        return containers > 1 or not self.readable.get(uuid) or bool(self.foreign_bytes.get(uuid))


EMPTY = Snapshot({}, {}, {}, {}, {})


def gpus_to_ask(last: Snapshot, records: Sequence[Record]) -> set[str]:
    """Return the GPUs whose processes to ask about, because the GPU's own figure is not enough."""
    containers = Counter(gpu.uuid for record in records for gpu in record.gpus)
    return {
        gpu.uuid
        for record in records
        for number, gpu in enumerate(record.gpus)
        if last.is_shared(gpu.uuid, containers[gpu.uuid]) and not is_measured(record, number)
    }


def utilisation_by_container(
    readings: Mapping[str, Reading],
    owners: Mapping[int, tuple[HostProcess, Record | None]],
    records: Sequence[Record],
) -> dict[Tenant, int]:
    """Return the percent of a GPU that a container's processes had, as far as it was asked for."""
    found = {}
    for record in records:
        for number, gpu in enumerate(record.gpus):
            reading = readings.get(gpu.uuid)
            if reading is not None and reading.busy is not None:
                own = (
                    n for pid, n in reading.busy.items() if _is_owned_by(owners.get(pid), record)
                )
                found[record.directory, number] = min(sum(own), _WHOLE)
    return found


def _is_owned_by(known: tuple[HostProcess, Record | None] | None, record: Record) -> bool:
    return known is not None and known[1] is record
