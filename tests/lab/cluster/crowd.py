"""Many nodes and pods on a real control plane, and what became of the pods."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from cgpu_env.errors import CgpuError
from cgpu_k8s import names
from cgpu_k8s.apiserver.client import Client, open_client
from cgpu_k8s.apiserver.resources import NODES
from cgpu_node import allocation_annotation
from lab.kubernetes.control_plane import ControlPlane
from lab.kubernetes.manifests import V100, gpus, node
from lab.kubernetes.objects import pod, pods_path

T = TypeVar("T")
Json = dict[str, Any]
UNITS = V100 >> 10  # GiB that a GPU counts
BESIDE = 25  # requests at once
ROOM = {"cpu": "128", "memory": "512Gi", "pods": "250"}  # so that only GPUs are scarce


class Outcome(NamedTuple):
    """What became of pods.

    Attributes:
        units: what bound pods have of each GPU, by UUID.
        bound: how many pods are bound.
        waiting: the names of those that are not.
        wrong: the names of bound pods without a decision for this pod, node and size.
    """

    units: Counter[str]
    bound: int
    waiting: list[str]
    wrong: list[str]

    @property
    def excess(self) -> int:
        """Units that are given away beyond what a GPU has."""
        return sum(max(0, units - UNITS) for units in self.units.values())

    def room(self, count: int) -> int:
        """The most units that one of ``count`` GPUs still has."""
        return UNITS - (min(self.units.values()) if len(self.units) == count else 0)


def asked(plane: ControlPlane, ask: Callable[[Client], Awaitable[T]]) -> T:
    """What ``ask`` finds out or does as the administrator."""

    async def act() -> T:
        async with open_client(plane.cluster()) as client:
            return await ask(client)

    return asyncio.run(act())


async def add_nodes(client: Client, count: int, each: int) -> None:
    """Add nodes with so many GPUs each."""
    made = (node(name, gpus(name, *[V100] * each)) for name in map(node_name, range(count)))
    await do_all(
        client.post(NODES.path(), {**item, "kind": "Node", "status": roomy(item["status"])})
        for item in made
    )


def node_name(number: int) -> str:
    """The name of a node."""
    return f"node-{number:04}"


def roomy(status: Json) -> Json:
    """A node's status, with room for pods."""
    return {**status, "allocatable": {**status["allocatable"], **ROOM}}


async def add_pods(client: Client, sizes: Mapping[str, int], resource: str = names.MEMORY) -> None:
    """Add pods that ask for so many units of a resource each, by their names."""
    limits = {name: {resource: str(size)} for name, size in sizes.items()}
    await do_all(
        client.post(pods_path(), pod(name, asked, schedulerName=names.SCHEDULERS[0]))
        for name, asked in limits.items()
    )


async def remove_pod(client: Client, name: str) -> None:
    """Delete a pod at once."""
    await client.delete(f"{pods_path()}/{name}", {"gracePeriodSeconds": 0})


async def remove_pods(client: Client) -> None:
    """Delete all pods at once."""
    found = [item["metadata"]["name"] for item in (await client.list(pods_path())).items]
    await do_all(remove_pod(client, name) for name in found)


async def outcome(client: Client) -> Outcome:
    """What became of all pods, each held to what its own limits ask for."""
    found = Outcome(Counter(), 0, [], [])
    bound = 0
    async for page in client.list_pages(pods_path()):
        for item in page.items:
            if not item["spec"].get("nodeName"):
                found.waiting.append(item["metadata"]["name"])
                continue
            bound += 1
            if not _count(item, found.units):
                found.wrong.append(item["metadata"]["name"])
    return found._replace(bound=bound)


def _count(item: Json, units: Counter[str]) -> bool:
    """Add what a pod has; whether its decision is for this pod, on its node, of its size."""
    size = int(item["spec"]["containers"][0]["resources"]["limits"][names.MEMORY])
    try:
        decided = allocation_annotation.parse_annotation(
            item["metadata"]["annotations"][names.ALLOCATION]
        )
        [(uuid, grant)] = decided.containers["main"].items()
    except (KeyError, ValueError, CgpuError):
        return False
    units[uuid] += size
    return (
        decided.pod == item["metadata"]["uid"]
        and decided.node == item["spec"]["nodeName"]
        and uuid.startswith(f"GPU-{decided.node}-")
        and grant.mem == size * V100 // UNITS
    )


async def do_all(works: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Do them, some at once."""
    left = iter(works)

    async def some() -> None:
        for work in left:
            await work

    await asyncio.gather(*(some() for _ in range(BESIDE)))
