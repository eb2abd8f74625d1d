"""``GET /gpushare-scheduler/inspect``: the books as published tools read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cgpu_k8s.objects.fields import Json
    from cgpu_k8s.scheduler.cache import Books


def inspect_nodes(books: Books, name: str = "") -> Json:
    """All nodes with GPUs, or the one called ``name``; ``error`` if there is none of that name."""
    if name and not (name in books.offers and books.offers[name].gpus):
        return {"error": f"the node {name} is not known, or shares no GPU"}
    names = [name] if name else sorted(name for name, each in books.offers.items() if each.gpus)
    return {"nodes": [_describe_node(books, each) for each in names]}


def _describe_node(books: Books, name: str) -> Json:
    node, gpus = books.nodes[name], sorted(books.offers[name].gpus.values(), key=lambda g: g.index)
    return {
        "name": name,
        "totalGPU": sum(gpu.units for gpu in gpus),
        "usedGPU": sum(node.used_part(gpu.uuid).units for gpu in gpus),
        "devs": [
            {
                "id": gpu.index,
                "totalGPU": gpu.units,
                "usedGPU": node.used_part(gpu.uuid).units,
                "pods": _describe_pods(books, name, gpu.uuid),
            }
            for gpu in gpus
        ],
    }


def _describe_pods(books: Books, name: str, uuid: str) -> list[Json]:
    found = []
    for decision in books.nodes[name].taken.values():
        if uuid in decision.gpus:
            reservation = books.reservations.get(decision.pod)
            pod = books.pods.get(decision.pod) or (reservation and reservation.pod)
            if pod:
                listed = {"name": pod.name, "namespace": pod.namespace}
                found.append({**listed, "usedGPU": decision.part.units})
    return sorted(found, key=lambda each: (each["namespace"], each["name"]))
