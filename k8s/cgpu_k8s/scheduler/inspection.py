"""``GET /gpushare-scheduler/inspect``: the cache in the format that published tools read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cgpu_k8s.objects.fields import Json
    from cgpu_k8s.scheduler.cache import SchedulerCache


def inspect_nodes(cache: SchedulerCache, name: str = "") -> Json:
    """Return all nodes with GPUs, or only ``name``; ``{"error": ...}`` if that node is unknown."""
    if name and not (name in cache.offers and cache.offers[name].gpus):
        return {"error": f"the node {name} is not known, or shares no GPU"}
    names = [name] if name else sorted(name for name, each in cache.offers.items() if each.gpus)
    return {"nodes": [_describe_node(cache, each) for each in names]}


def _describe_node(cache: SchedulerCache, name: str) -> Json:
    node, gpus = cache.nodes[name], sorted(cache.offers[name].gpus.values(), key=lambda g: g.index)
    return {
        "name": name,
        "totalGPU": sum(gpu.units for gpu in gpus),
        "usedGPU": sum(node.used_part(gpu.uuid).units for gpu in gpus),
        "devs": [
            {
                "id": gpu.index,
                "totalGPU": gpu.units,
                "usedGPU": node.used_part(gpu.uuid).units,
                "pods": _describe_pods(cache, name, gpu.uuid),
            }
            for gpu in gpus
        ],
    }


def _describe_pods(cache: SchedulerCache, name: str, uuid: str) -> list[Json]:
    found = []
    for allocation in cache.nodes[name].taken.values():
        if uuid in allocation.gpus:
            assumed = cache.assumed.get(allocation.pod)
            pod = cache.pods.get(allocation.pod) or (assumed and assumed.pod)
            if pod:
                listed = {"name": pod.name, "namespace": pod.namespace}
                used = cache.nodes[name].resolve_part(uuid, allocation.part)
                found.append({**listed, "usedGPU": used.units})
    return sorted(found, key=lambda each: (each["namespace"], each["name"]))
