"""The shares of this node's GPUs: the containers that have them, and their caps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cgpu_native
from cgpu_k8s.node.audit import Living
from cgpu_node import client
from cgpu_node.shares.record import pod_of
from cgpu_node.shares.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cgpu_node.shares.record import Record

_MIB = 20


class Shares:
    """The shares that the state directory ``state`` has."""

    def __init__(self, state: str) -> None:
        self.state = state
        self._registry = Registry(state)

    def list_living(self) -> list[Living]:
        """Return all containers and sessions that live.

        Raises:
            CgpuError, OSError: their records cannot be read.
        """
        return [
            Living(
                record.id,
                pod_of(record.directory),
                {uuid: size >> _MIB for uuid, size in _read_caps(record)},
                {gpu.uuid: -(-gpu.cap_bytes >> _MIB) for gpu in record.gpus},
                record.weight,
            )
            for record in self._registry.list_records()
        ]

    def set_caps(self, container: str, caps: Iterable[tuple[str, int]]) -> None:
        """Set the caps of a container: UUIDs of GPUs with MiB.

        Raises:
            CgpuError: the node's server does not set them.
        """
        for uuid, mib in caps:
            request = {"request": "set", "target": f"{uuid}/{container}"}
            client.send_request(self.state, {**request, "values": {"memsize": f"{mib}MiB"}})


def _read_caps(record: Record) -> Iterable[tuple[str, int]]:
    """Return the caps that are in force, which may be lower than those that were promised."""
    try:
        limits = cgpu_native.read_limits(f"{record.directory}/limits").gpus
    except (OSError, cgpu_native.NativeError):  # it has just ended
        return ((gpu.uuid, gpu.cap_bytes) for gpu in record.gpus)
    return ((gpu.uuid, gpu.cap_bytes) for gpu in limits)
