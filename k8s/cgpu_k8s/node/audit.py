"""Compares the shares of pods' containers with what their pods ask for; pure.

cgpu's runtime makes the same check when a container starts. The audit also finds containers that
started while no agent ran or before the configuration changed, and annotations that changed since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cgpu_k8s.names import ALLOCATION, MEMORY
from cgpu_node.podspecs import Limit

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from cgpu_k8s.node.pods import NodePod
    from cgpu_k8s.objects.gpus import OfferedGpu
    from cgpu_node.shares.record import PodContainer

_DO = "delete the pod, so that it is placed anew"


class Living(NamedTuple):
    """A container or session with a share.

    Attributes:
        id: its id.
        pod: its pod's UID and its name in the pod; None if it belongs to no pod.
        caps: MiB that it may hold now, by the GPU's UUID.
        promised: MiB that are reserved for it, by the GPU's UUID.
        weight: the weight that is reserved for it on each GPU.
    """

    id: str
    pod: PodContainer | None
    caps: Mapping[str, int]
    promised: Mapping[str, int]
    weight: int


class ContainerMismatch(NamedTuple):
    """A container that does not have what its pod asks for.

    Attributes:
        container: the container's id, or "" if it has no share.
        sentence: the message of the event about the node.
        caps: the caps to set, as pairs of a GPU's UUID and MiB; empty if no cap repairs it.
    """

    container: str
    sentence: str
    caps: tuple[tuple[str, int], ...] = ()


def audit_containers(
    living: Iterable[Living],
    pods: Mapping[str, NodePod],
    gpus: Mapping[str, OfferedGpu],
    passing: Collection[str],
    *,
    limited: bool,
) -> list[ContainerMismatch]:
    """Return the containers of this node's pods that do not have what their pods ask for.

    Args:
        living: all containers and sessions with shares.
        pods: the node's pods, by UID.
        gpus: the node's GPUs, by UUID.
        passing: namespaces whose pods are treated like any other container.
        limited: whether the mode in force limits memory.
    """
    found: list[ContainerMismatch] = []
    shared: set[tuple[str, str]] = set()
    for each in living:
        pod = pods.get(each.pod.uid) if each.pod else None
        if each.pod is None or pod is None or pod.namespace in passing:
            continue
        shared.add((pod.uid, each.pod.container))
        found += _compare_container(each, each.pod.container, pod, gpus)
    if limited:
        found += _find_unlimited(pods, passing, shared)
    return found


def _compare_container(
    share: Living, container: str, pod: NodePod, gpus: Mapping[str, OfferedGpu]
) -> Iterator[ContainerMismatch]:
    limit = pod.limits.get(container, Limit(0))
    known = {uuid: (gpus[uuid], mib) for uuid, mib in share.caps.items() if uuid in gpus}
    if sum(gpu.units_of(mib) for gpu, mib in known.values()) > limit.mem:
        part = limit.mem // len(share.caps)
        most = {uuid: gpu.mib_of(part) or 1 for uuid, (gpu, _) in known.items()}
        caps = tuple((uuid, mib) for uuid, mib in most.items() if mib < share.caps[uuid])
        if caps:
            has = ", ".join(f"{share.caps[u]} MiB of GPU {gpus[u].index}" for u, _ in caps)
            yield ContainerMismatch(
                share.id,
                f"pod {pod.name}, container {container}: it may hold {has}, and its limit is"
                f" {MEMORY}={limit.mem}: it is held to that from now on",
                caps,
            )
    if pod.shares and share.caps.keys() != pod.gpus:
        yield ContainerMismatch(
            share.id,
            f"pod {pod.name}, container {container}: it runs on {_join_uuids(share.caps)}, and the"
            f" pod's annotation {ALLOCATION} names {_join_uuids(pod.gpus)}: {_DO}",
        )


def _find_unlimited(
    pods: Mapping[str, NodePod], passing: Collection[str], shared: Collection[tuple[str, str]]
) -> Iterator[ContainerMismatch]:
    for pod in pods.values():
        for container in sorted(pod.running & pod.limits.keys()):
            if pod.shares and pod.namespace not in passing and (pod.uid, container) not in shared:
                yield ContainerMismatch(
                    "",
                    f"pod {pod.name}, container {container}: it runs without a share, so nothing"
                    f" limits it: make cgpu the pods' runtime (cgpu install), and {_DO}",
                )


def _join_uuids(uuids: Iterable[str]) -> str:
    return ", ".join(sorted(uuids)) or "none"
