"""Reads the shares of this node's GPUs, and sets caps."""

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
    """The shares in the state directory ``state``."""

    def __init__(self, state: str) -> None:
        self.state = state
        self._registry = Registry(state)

    def list_living(self) -> list[Living]:
        """Return all living containers and sessions with shares.

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
        """Set caps of a container.

        Args:
            container: its id.
            caps: pairs of a GPU's UUID and MiB.

        Raises:
            CgpuError: the node's server does not set them.
        """
        for uuid, mib in caps:
            request = {"request": "set", "target": f"{uuid}/{container}"}
            client.send_request(self.state, {**request, "values": {"memsize": f"{mib}MiB"}})


def _read_caps(record: Record) -> Iterable[tuple[str, int]]:
    """Return the caps in force, in bytes by UUID; they may be lower than what was promised."""
    try:
        limits = cgpu_native.read_limits(f"{record.directory}/limits").gpus
    except (OSError, cgpu_native.NativeError):  # the container has just ended
        return ((gpu.uuid, gpu.cap_bytes) for gpu in record.gpus)
    return ((gpu.uuid, gpu.cap_bytes) for gpu in limits)
