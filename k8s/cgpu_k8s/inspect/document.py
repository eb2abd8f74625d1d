"""A cluster as a document for programs: docs/kubernetes.md describes its keys."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cgpu_k8s.inspect.text import MEMORY, choose_unit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cgpu_k8s.inspect.claims import ClaimNodeView, ClaimsView
    from cgpu_k8s.inspect.cluster import GpuView, NodeView, PodView
    from cgpu_k8s.inspect.coscheduling import GroupView, PolicyView
    from cgpu_k8s.objects.published import Share

VERSION = 1


def make_document(
    nodes: Sequence[NodeView],
    groups: Sequence[GroupView] | None,
    policies: Sequence[PolicyView] | None,
    claims: ClaimsView | None = None,
) -> dict[str, Any]:
    """Return all that is known of nodes, groups, policies and claims; what is not known is None."""
    return {
        "version": VERSION,
        "unit": "GiB" if any(node.offer.gpus for node in nodes) else choose_unit(nodes),
        "allocated": sum(node.allocated[MEMORY.part] for node in nodes),
        "total": sum(node.total[MEMORY.part] for node in nodes),
        "nodes": [_describe_node(node) for node in nodes],
        "groups": None if groups is None else [_describe_group(each) for each in groups],
        "policies": None if policies is None else [_describe_policy(each) for each in policies],
        "claims": None if claims is None else _describe_claims(claims),
    }


def _describe_group(group: GroupView) -> dict[str, Any]:
    return {**group._asdict(), "missing": group.missing or None}


def _describe_policy(policy: PolicyView) -> dict[str, Any]:
    units = [{"nodes": each.nodes, "pods": each.pods, "max": each.most} for each in policy.units]
    return {**policy._asdict(), "units": units, "message": policy.message or None}


def _describe_node(node: NodeView) -> dict[str, Any]:
    allocated, total, pending = node.allocated, node.total, node.pending
    return {
        "name": node.offer.name,
        "address": node.offer.address or None,
        "mode": node.offer.mode or None,
        "placement": node.offer.placement,
        "withheld": node.offer.withheld or None,
        "allocated": allocated.units,
        "total": total.units,
        "pending": pending.units,
        "allocated_cores": allocated.cores,
        "total_cores": total.cores,
        "pending_cores": pending.cores,
        "gpus": [_describe_gpu(index, gpu) for index, gpu in node.gpus.items()],
        "pods": [_describe_pod(pod, node.gpus) for pod in node.pods],
    }


def _describe_gpu(index: int, gpu: GpuView) -> dict[str, Any]:
    return {
        "index": index,
        "uuid": gpu.uuid or None,
        "healthy": gpu.healthy if gpu.uuid else None,
        "held": gpu.held.units if gpu.uuid else None,
        "held_cores": gpu.held.cores if gpu.uuid else None,
        "allocated": gpu.allocated.units,
        "total": gpu.total.units,
        "allocated_cores": gpu.allocated.cores,
        "total_cores": gpu.total.cores,
    }


def _describe_pod(pod: PodView, gpus: Mapping[int, GpuView]) -> dict[str, Any]:
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "uid": pod.uid,
        "pending": pod.pending.units,
        "pending_cores": pod.pending.cores,
        "problem": pod.problem or None,
        "gpus": [
            {
                "index": index,
                "uuid": gpus[index].uuid or None,
                "allocated": share.units,
                "allocated_cores": share.cores,
            }
            for index, share in sorted(pod.shares.items())
        ],
    }


def _describe_claims(claims: ClaimsView) -> dict[str, Any]:
    waiting = None if claims.waiting is None else [*claims.waiting.items()]
    return {
        "unit": "MiB",
        "problem": claims.problem or None,
        "nodes": [_describe_claim_node(each) for each in claims.nodes],
        "waiting": None
        if waiting is None
        else [
            {
                "namespace": pod.namespace,
                "name": pod.name,
                "uid": pod.uid,
                "claims": [each or None for each in pod.claims],
                "resources": dict(pod.resources),
                "reason": reason,
            }
            for pod, reason in waiting
        ],
    }


def _describe_claim_node(node: ClaimNodeView) -> dict[str, Any]:
    return {
        "name": node.offer.name,
        "address": node.offer.address or None,
        "problem": node.problem or None,
        **_describe_shares(node.allocated, node.total),
        "devices": [
            {
                "name": each.name,
                "number": number,
                "uuid": each.uuid or None,
                "taints": [*each.taints],
                **_describe_shares(each.allocated, each.total),
                "allocated_slots": each.taken,
                "total_slots": each.slots,
            }
            for number, each in node.devices.items()
        ],
        "claims": [
            {
                "namespace": view.claim.namespace,
                "name": view.claim.name,
                "uid": view.claim.uid,
                "pods": [*view.claim.pods],
                "devices": [
                    {
                        "name": node.devices[number].name,
                        "uuid": node.devices[number].uuid or None,
                        "allocated": share.units,
                        "allocated_cores": share.cores,
                    }
                    for number, share in sorted(view.shares.items())
                ],
            }
            for view in node.claims
        ],
    }


def _describe_shares(allocated: Share | None, total: Share) -> dict[str, Any]:
    return {
        "allocated": None if allocated is None else allocated.units,
        "total": total.units,
        "allocated_cores": None if allocated is None else allocated.cores,
        "total_cores": total.cores,
    }


def _to_json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2) + "\n"


def _to_yaml(content: dict[str, Any]) -> str:
    import yaml  # noqa: PLC0415 (only who asks for it waits)

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(content, Dumper=dumper, sort_keys=False, allow_unicode=True))


FORMATS: dict[str, Callable[[dict[str, Any]], str]] = {"json": _to_json, "yaml": _to_yaml}
