"""Reads the nodes and pods to show from the API server, page by page; keeps what is shown."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from cgpu_env.errors import CgpuError
from cgpu_k8s.apiserver.client import open_client
from cgpu_k8s.apiserver.errors import ApiError, NotFoundError
from cgpu_k8s.apiserver.resources import (
    EVENTS,
    MAKERS,
    NODES,
    PODS,
    RESOURCE_POLICIES,
    Resource,
)
from cgpu_k8s.inspect.claims import is_for_claims
from cgpu_k8s.inspect.cluster import GpuPod, NodeFacts, read_gpu_pod, read_node_facts
from cgpu_k8s.inspect.coscheduling import PolicyView, read_policy_view
from cgpu_k8s.inspect.fetch_claims import fetch_claims
from cgpu_k8s.inspect.listing import list_objects
from cgpu_k8s.objects.claims import read_claiming_pod

if TYPE_CHECKING:
    from cgpu_k8s.apiserver.client import Client
    from cgpu_k8s.apiserver.cluster import Cluster
    from cgpu_k8s.inspect.claims import ClaimFacts

_LIVING = "status.phase!=Succeeded,status.phase!=Failed"
_PATIENCE = 30.0  # seconds for one page


class Fetched(NamedTuple):
    """Nodes, pods that ask for a part of a GPU, and claims; None: no node gives GPUs to claims."""

    machines: list[NodeFacts]
    gpu_pods: list[GpuPod]
    claims: ClaimFacts | None = None


class FetchedPod(NamedTuple):
    """A pod: its object, what it asks of GPUs, and its events."""

    raw: dict[str, Any]
    gpu_pod: GpuPod | None
    events: list[dict[str, Any]]


async def fetch_nodes(cluster: Cluster, node: str = "", *, waiting: bool = False) -> Fetched:
    """Fetch all nodes, or one, with their pods; with ``waiting`` also pods that are on no node.

    Raises:
        CgpuError: the API server cannot be asked, refuses, or has no such node.
    """
    async with open_client(cluster, timeout=_PATIENCE) as client:
        machines = _get_machine(client, node) if node else _list_machines(client)
        where = f"spec.nodeName={node}," if node else "" if waiting else "spec.nodeName!=,"
        nodes, gpu_pods = await asyncio.gather(machines, _list_gpu_pods(client, where))
        if not any(map(is_for_claims, nodes)):
            return Fetched(nodes, gpu_pods)
        claims = await fetch_claims(client, node)
        return Fetched(nodes, gpu_pods, claims)


async def fetch_policies(cluster: Cluster) -> list[PolicyView]:
    """Fetch all ResourcePolicies; none from a cluster without the kind.

    Raises:
        CgpuError: the API server cannot be asked, or refuses.
    """
    async with open_client(cluster, timeout=_PATIENCE) as client:
        try:
            found = await list_objects(client, RESOURCE_POLICIES.path(), {}, read_policy_view)
        except NotFoundError:
            return []
    return sorted(found, key=lambda policy: policy[:2])


async def fetch_pod(cluster: Cluster, name: str, namespace: str) -> tuple[FetchedPod, Fetched]:
    """Fetch a pod with its events, and all nodes with their pods.

    Raises:
        CgpuError: the API server cannot be asked, refuses, or has no such pod.
    """
    async with open_client(cluster, timeout=_PATIENCE) as client:
        asked, machines, gpu_pods = await asyncio.gather(
            _get_pod(client, name, namespace), _list_machines(client), _list_gpu_pods(client)
        )
        named = read_claiming_pod(asked.raw)
        claims = await fetch_claims(client, pod=named) if named else None
        return asked, Fetched(machines, gpu_pods, claims)


async def fetch_maker(
    cluster: Cluster, kind: str, name: str, namespace: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Fetch an object that makes pods, such as a Job, and its events; ``kind`` is a key of MAKERS.

    Raises:
        CgpuError: the API server cannot be asked, refuses, or has no such object.
    """
    async with open_client(cluster, timeout=_PATIENCE) as client:
        return await _get_with_events(client, MAKERS[kind], kind, name, namespace)


async def _list_machines(client: Client) -> list[NodeFacts]:
    return await list_objects(client, NODES.path(), {}, read_node_facts)


async def _get_machine(client: Client, name: str) -> list[NodeFacts]:
    try:
        return [read_node_facts(await client.get(NODES.path(name)))]
    except NotFoundError:
        raise CgpuError(f"node {name}: the cluster has no node of this name") from None


async def _list_gpu_pods(client: Client, where: str = "") -> list[GpuPod]:
    """Return the pods with GPUs that the field selector ``where`` chooses, but those that ended."""
    found = await list_objects(
        client, PODS.path(), {"fieldSelector": f"{where}{_LIVING}"}, read_gpu_pod
    )
    return [gpu_pod for gpu_pod in found if gpu_pod is not None]


async def _get_pod(client: Client, name: str, namespace: str) -> FetchedPod:
    raw, events = await _get_with_events(client, PODS, "pod", name, namespace)
    return FetchedPod(raw, read_gpu_pod(raw), events)


async def _get_with_events(
    client: Client, resource: Resource, kind: str, name: str, namespace: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return an object, and its events."""
    try:
        raw = await _get_object(client, resource, name, namespace)
    except NotFoundError:
        raise CgpuError(
            f"{kind} {namespace}/{name}: there is no {kind} of this name in this namespace",
            hint="-n names another namespace",
        ) from None
    uid = str(raw["metadata"]["uid"])
    try:
        events = await client.list(
            EVENTS.path(namespace=namespace), {"fieldSelector": f"involvedObject.uid={uid}"}
        )
    except ApiError:  # the answer can do without them
        return raw, []
    return raw, events.items


async def _get_object(
    client: Client, resource: Resource, name: str, namespace: str
) -> dict[str, Any]:
    try:
        return await client.get(resource.path(name, namespace=namespace))
    except NotFoundError:
        if resource != MAKERS["cronjob"]:
            raise
    older = resource._replace(version="v1beta1")  # before 1.21
    return await client.get(older.path(name, namespace=namespace))
