"""Claims, slices of our driver, and pods that name claims, as an API server has them."""

from __future__ import annotations

from typing import Any

from cgpu_k8s.dra.slices import SliceGpu, SliceNode, plan_slice
from lab.kubernetes.manifests import published_node

Json = dict[str, Any]
V100 = 16160  # MiB
DRIVER = "gpu.cgpu"
_API = "resource.k8s.io/v1"


def claims_node(name: str, address: str = "127.0.0.1") -> Json:
    """A node that is labelled for claims."""
    found: Json = published_node(name, 0, 0, address)
    found["metadata"]["labels"] = {"ack.node.gpu.schedule": "dra"}
    return found


def slice_of(node: str, *sizes: int, first: int = 0) -> Json:
    """The slice of a node with GPUs of these sizes in MiB, whose first one has this index."""
    gpus = [SliceGpu(n, f"GPU-{node}-{n}", "V100", mib) for n, mib in enumerate(sizes, first)]
    found = plan_slice(SliceNode(node, f"uid-{node}"), gpus, None)
    assert found is not None
    return found


def tainted(item: Json, number: int, effect: str = "NoSchedule") -> Json:
    """A slice, with a taint of one of its devices."""
    item["spec"]["devices"][number]["taints"] = [{"key": "gpu.cgpu/lost", "effect": effect}]
    return item


def claim_of(
    name: str,
    *parts: tuple[str, str, str, str],
    pods: tuple[str, ...] = (),
    namespace: str = "default",
    exactly: Json | None = None,
    **asked: str,
) -> Json:
    """A claim that asks for amounts, and has parts: node, device, memory and cores."""
    results = [
        {
            "request": "gpu",
            "driver": DRIVER,
            "pool": node,
            "device": device,
            "consumedCapacity": {"memory": memory, "cores": cores, "slots": "1"},
        }
        for node, device, memory, cores in parts
    ]
    request = {"deviceClassName": DRIVER, **(exactly or {})}
    if asked:
        request["capacity"] = {"requests": asked}
    reserved = [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods]
    return {
        "apiVersion": _API,
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": request}]}},
        "status": {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}
        if parts
        else {},
    }


def pod_with(name: str, *claims: str, waits: str = "", node: str = "") -> Json:
    """A pod that names claims; ``waits``: its scheduler's words; "": its template's claim."""
    named = [{"name": f"c{n}", "resourceClaimName": each} for n, each in enumerate(claims) if each]
    named += [{"name": "t", "resourceClaimTemplateName": "part"}] * ("" in claims)
    conditions = [{"type": "PodScheduled", "status": "False", "message": waits}] if waits else []
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"containers": [{"name": "main"}], "resourceClaims": named, "nodeName": node},
        "status": {"phase": "Pending", "conditions": conditions},
    }


def device_class(name: str, driver: str = DRIVER) -> Json:
    """A class of the devices of a driver."""
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    return {"metadata": {"name": name}, "spec": {"selectors": [selector]}}
