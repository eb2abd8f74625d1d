"""Sums what docker's containers and ``cgpu-run`` hold of this node's GPUs; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from cgpu_k8s.node.audit import Living


class NonPodUsage(NamedTuple):
    """Memory of a GPU in MiB, and the sum of weights on it."""

    mib: int = 0
    weights: int = 0


def sum_non_pod_usage(
    living: Iterable[Living], pods: Collection[str], before: Collection[str]
) -> dict[str, NonPodUsage]:
    """Return the sum of the shares that are not in the scheduler's cache, by the GPU's UUID.

    A container whose pod is gone from the cluster still counts. A new container of an unknown pod
    does not: the watch may not have shown the pod yet.

    Args:
        living: all containers and sessions with shares.
        pods: the UIDs of the pods in the cache.
        before: the ids of the containers with shares at the last audit.
    """
    found: dict[str, NonPodUsage] = {}
    for each in living:
        if each.pod and (each.pod.uid in pods or each.id not in before):
            continue
        for uuid, mib in each.promised.items():
            had = found.get(uuid, NonPodUsage())
            found[uuid] = NonPodUsage(had.mib + mib, had.weights + each.weight)
    return found
