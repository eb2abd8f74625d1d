"""Memory of this node's GPUs that others than pods were promised: docker, ``cgpu-run``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from cgpu_node.shares.record import Record

_PODS = "/k8s.io/"  # containerd's name for what a kubelet starts, in a runtime's directory
_MIB = 20


def held(records: Iterable[Record], pods: Collection[str]) -> dict[str, int]:
    """MiB that others than pods were promised, by the GPU's UUID.

    Args:
        records: of what lives on the node.
        pods: the ids of the containers of its pods, as their objects name them.
    """
    found: dict[str, int] = {}
    for record in records:
        if record.id not in pods and _PODS not in (record.owner.runtime_dir or ""):
            for gpu in record.gpus:
                found[gpu.uuid] = found.get(gpu.uuid, 0) + -(-gpu.cap_bytes >> _MIB)
    return found
