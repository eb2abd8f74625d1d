"""Shares of this node's GPUs that are not of pods: those of docker and ``cgpu-run``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from cgpu_k8s.node.audit import Living


class NonPodUsage(NamedTuple):
    """Memory in MiB of a GPU, and the weights of the containers that share it."""

    mib: int = 0
    weights: int = 0


def sum_non_pod_usage(
    living: Iterable[Living], pods: Collection[str], before: Collection[str]
) -> dict[str, NonPodUsage]:
    """Return the shares that are not in the scheduler's cache, by the GPU's UUID.

    A container of a pod that is gone from the cluster still counts. A container of a pod that is
    not known yet does not: it was created a moment ago.

    Args:
        living: all containers and sessions that have shares.
        pods: the UIDs of the pods that are in the cache.
        before: the ids of those that lived at the check before.
    """
    found: dict[str, NonPodUsage] = {}
    for each in living:
        if each.pod and (each.pod.uid in pods or each.id not in before):
            continue
        for uuid, mib in each.promised.items():
            had = found.get(uuid, NonPodUsage())
            found[uuid] = NonPodUsage(had.mib + mib, had.weights + each.weight)
    return found
