"""Who uses the node's GPUs now: what ``cgpu-smi`` shows, without a word on how."""

from __future__ import annotations

from typing import Any, NamedTuple

import cgpu_native
from cgpu_hook.node import Node, load_node
from cgpu_hook.paths import open_state
from cgpu_hook.record import Record
from cgpu_hook.registry import Registry


class GpuUse(NamedTuple):
    """What one container holds on one GPU. Bytes.

    Attributes:
        index: of the GPU on this node.
        uuid: of the GPU.
        memory_bytes: the container's cap.
        used_bytes: what its processes hold.
        processes: of those that hold memory there, the pid as the process sees it, and bytes.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    uuid: str
    memory_bytes: int
    used_bytes: int
    processes: tuple[tuple[int, int], ...]


class Use(NamedTuple):
    """A container or session, and what it holds on each of its GPUs."""

    record: Record
    gpus: tuple[GpuUse, ...]


class Usage(NamedTuple):
    """A node with its containers and sessions."""

    node: Node
    uses: tuple[Use, ...]

    def on(self, uuid: str) -> list[tuple[Record, GpuUse]]:
        """The containers on one GPU."""
        return [(use.record, gpu) for use in self.uses for gpu in use.gpus if gpu.uuid == uuid]

    def as_json(self) -> dict[str, Any]:
        """What ``cgpu-smi --json`` prints."""
        return {
            "driver_version": self.node.driver_version,
            "gpus": [
                {
                    "index": gpu.index,
                    "uuid": gpu.uuid,
                    "name": gpu.name,
                    "memory_bytes": gpu.memory_bytes,
                    "promised_bytes": sum(use.memory_bytes for _, use in self.on(gpu.uuid)),
                    "used_bytes": sum(use.used_bytes for _, use in self.on(gpu.uuid)),
                    "max_inst": self.node.max_inst,
                    "free_weight": self.node.max_inst
                    - sum(record.weight for record, _ in self.on(gpu.uuid)),
                }
                for gpu in self.node.gpus
            ],
            "containers": [_container(use) for use in self.uses],
        }


def read_usage(state_dir: str | None, driver_dir: str | None) -> Usage:
    """Look at the node and at the ledgers of all that live.

    Raises:
        CgpuError: no state directory or no driver.
    """
    state = open_state(state_dir)
    records = Registry(state).records()
    return Usage(load_node(state, driver_dir), tuple(map(_use, records)))


def _use(record: Record) -> Use:
    try:
        with cgpu_native.Ledger.observe(f"{record.directory}/ledger") as ledger:
            gpus = [
                GpuUse(*share, *_held(ledger, place)) for place, share in enumerate(record.gpus)
            ]
    except (OSError, cgpu_native.NativeError):  # it ended meanwhile, or ruined its own ledger
        gpus = [GpuUse(*share, 0, ()) for share in record.gpus]
    return Use(record, tuple(gpus))


def _held(ledger: cgpu_native.Ledger, place: int) -> tuple[int, tuple[tuple[int, int], ...]]:
    processes = tuple((entry.pid, entry.used_bytes) for entry in ledger.processes(place))
    return sum(used for _, used in processes), processes


def _container(use: Use) -> dict[str, Any]:
    record = use.record
    return {
        "id": record.id,
        "kind": record.kind,
        "command": list(record.command),
        "weight": record.weight,
        "high_priority": record.high_priority,
        "policy": record.policy,
        "gpus": [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "memory_bytes": gpu.memory_bytes,
                "used_bytes": gpu.used_bytes,
                "processes": [{"pid": pid, "used_bytes": used} for pid, used in gpu.processes],
            }
            for gpu in use.gpus
        ],
    }
