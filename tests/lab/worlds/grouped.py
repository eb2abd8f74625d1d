"""An extender that knows the pods of groups, and three nodes of whole GPUs or shares."""

from __future__ import annotations

import asyncio
import json
import time

from cgpu_k8s.names import RESERVATION
from cgpu_k8s.objects.allocations import write_annotations
from cgpu_k8s.objects.nodes import read_node
from cgpu_k8s.objects.pods import read_pod
from lab.worlds.extender import Json, World, node
from lab.worlds.extender import pod as sharing

NODES = ("a", "b", "c")


def pod(name: str, gpus: int = 2, group: str = "job", size: int = 3, mem: int = 0) -> Json:
    """A pod of a group: with whole GPUs, or with a share."""
    made = sharing(name, mem)
    if not mem:
        made["spec"]["containers"][0]["resources"] = {"limits": {"aliyun.com/gpu": str(gpus)}}
    labels = {"gpu-topology": group, "gpu-topology-replica": str(size)} if group else {}
    made["metadata"] |= {"labels": labels, "creationTimestamp": f"2026-01-01T00:00:{name[-1]}"}
    return made


def cluster(*pods: Json, mode: str = "topology", gpus: int = 2) -> World:
    """An extender that knows these pods, and three nodes."""
    world = World(*pods)
    world.cache.replace_nodes(read_node(node(name, mode, gpus)) for name in NODES)
    world.cache.replace_pods(map(read_pod, pods))
    return world


def restarted(world: World, wall: float | None = None) -> World:
    """The next leader of the same cluster, which has listed everything."""
    pods = world.server.pods.values()
    found = cluster(*pods)
    found.server = world.server
    found.cache.restore_reservations(1000.0, time.time() if wall is None else wall)
    return found


async def asked(world: World, given: Json) -> str:
    """The node that a pod's scheduler may take, or why it may take none."""
    answer = await world.filter(given, NODES)
    [found] = answer["NodeNames"] or [next(iter(answer["FailedNodes"].values()))]
    return str(found)


async def bound(world: World, *pods: Json) -> list[str]:
    """The nodes that the pods of a group are bound to after they are filtered."""
    nodes = [await asked(world, each) for each in pods]
    assert await asyncio.gather(*map(world.bind, pods, nodes)) == [""] * len(pods)
    for each in pods:
        world.cache.update_pod(read_pod(each))
    return nodes


def sent(world: World, given: Json) -> str:
    """The node that a pod is bound to alone, by an extender that is killed after that."""
    read = read_pod(given)
    to = world.cache.assumed[read.uid].allocation
    notes = write_annotations(to, read, world.cache.offers[to.node].gpus, 1)
    world.server.land({"metadata": {"name": read.name, "annotations": notes},
                       "target": {"name": to.node}})  # fmt: skip
    world.cache.update_pod(read_pod(given))
    return to.node


def terminate(world: World, *pods: Json) -> None:
    """Delete pods, whose containers still run or which have finalizers."""
    for each in pods:
        each["metadata"]["deletionTimestamp"] = "2026-01-01T01:00:00Z"
        world.cache.update_pod(read_pod(each))


def reservations(world: World) -> list[str]:
    """The nodes that pods show as reserved for them."""
    notes = (each["metadata"].get("annotations", {}) for each in world.server.pods.values())
    return [json.loads(note[RESERVATION])["node"] for note in notes if RESERVATION in note]
