"""Claims as the API server has them once they are allocated, and a node with two GPUs."""

from __future__ import annotations

from typing import Any

from cgpu_k8s.dra.claims import ClaimName
from cgpu_node.facts.node import NodeGpu

Json = dict[str, Any]
NODE, DRIVER = "gpu-a", "gpu.cgpu"
UID = "6a1d5e0e-0000-4000-8000-000000000001"
CLAIM = ClaimName(UID, "ml", "train")
T4_MIB, MIB = 15109, 1 << 20
UUIDS = [f"GPU-0000000{i}-1111-2222-3333-444444444444" for i in range(2)]
GPUS = [NodeGpu(i, uuid, "Tesla T4", T4_MIB * MIB, 0, ()) for i, uuid in enumerate(UUIDS)]


def result(gpu: int = 0, memory: str = "2500Mi", cores: str = "30", **other: Any) -> Json:
    """A device of the allocation."""
    found = {
        "request": "gpu",
        "driver": DRIVER,
        "pool": NODE,
        "device": f"gpu-{gpu}",
        "shareID": f"share-{gpu}",
        "consumedCapacity": {"memory": memory, "cores": cores, "slots": "1"},
    }
    return {**found, **other}


def configured(*requests: str, source: str = "FromClaim", **parameters: Any) -> Json:
    """Parameters in an allocation, for these requests, or for all."""
    about = {"apiVersion": "gpu.cgpu/v1alpha1", "kind": "GpuConfig"}
    opaque = {"driver": DRIVER, "parameters": {**about, **parameters}}
    return {"source": source, "requests": [*requests], "opaque": opaque}


def allocated(*results: Json, uid: str = UID, config: list[Json] | None = None) -> Json:
    """The claim, with these devices; without any, one that is not allocated."""
    devices: Json = {"results": list(results)}
    if config:
        devices["config"] = config
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": CLAIM.name, "namespace": CLAIM.namespace, "uid": uid},
        "spec": {},
        "status": {"allocation": {"devices": devices}} if results else {},
    }
