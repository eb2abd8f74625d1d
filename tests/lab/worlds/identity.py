"""Containers of pods on several nodes, with what the allocator decided for each."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, NamedTuple

from cgpu_k8s.objects.allocations import Allocation, write_annotations
from cgpu_k8s.objects.gpus import OfferedGpu
from cgpu_k8s.objects.nodes import BINPACK
from cgpu_k8s.objects.pod_request import ContainerRequest, PodRequest
from cgpu_k8s.objects.pods import Pod
from cgpu_k8s.scheduler.allocation import NodeInfo, allocate_gpus
from cgpu_node.settings.kubernetes import CGPU, CORE_MEM
from cgpu_node.shares.record import pod_of, read
from lab.worlds.pods import PodWorld, containerd, crio

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NODES, GPUS, CONTAINERS = 10, 8, 100  # on each node
MIB = 1 << 20


class Wanted(NamedTuple):
    """A container to create, and what it is to have: bytes by UUID, and its weight."""

    id: str
    pod: Pod
    name: str
    world: PodWorld
    annotations: dict[str, str]
    caps: dict[str, int]
    weight: int

    def has(self, container: str) -> str:
        """What is wrong with what a container has; "": nothing."""
        found = read(str(self.world.state / "containers" / container))
        if found is None:
            return f"{container}: it has no share"
        pod = pod_of(found.directory)
        got = {gpu.uuid: gpu.cap_bytes for gpu in found.gpus}, found.weight
        whose = (pod.uid, pod.container) if pod else ("", "")
        right = (got, whose) == ((self.caps, self.weight), (self.pod.uid, self.name))
        return "" if right else f"{container}: {got} of {whose}"


def facts(world: PodWorld) -> dict[str, OfferedGpu]:
    """Give the world eight GPUs of four sizes; their order is another one on each node."""
    path = world.state / "node.json"
    content = json.loads(path.read_text())
    sizes = [24576, 32510, 40536, 81559] * 2
    chance = random.Random(world.folder.name)
    chance.shuffle(sizes)
    content["gpus"] = [
        {
            **content["gpus"][0],
            "index": index,
            "uuid": f"GPU-{index:08x}-0000-4000-8000-{chance.getrandbits(48):012x}",
            "memory_bytes": size * MIB,
        }
        for index, size in enumerate(sizes)
    ]
    path.write_text(json.dumps(content))
    return {
        gpu["uuid"]: OfferedGpu(gpu["uuid"], gpu["index"], gpu["memory_bytes"] // MIB)
        for gpu in content["gpus"]
    }


def pods(
    node: str, mode: str, gpus: dict[str, OfferedGpu], seed: int
) -> Iterator[tuple[Pod, Allocation]]:
    """Pods of one to three containers on one or two GPUs, as the allocator places them."""
    chance, timed = random.Random(seed), mode == CORE_MEM
    here = NodeInfo(node, mode, BINPACK, gpus.values())
    made = 0
    while made < CONTAINERS:
        uid = f"{seed:08x}-{made:04x}-4000-8000-{chance.getrandbits(48):012x}"
        spread = chance.choice((1,) * 9 + (2,))
        count = min(chance.randint(1, 3), CONTAINERS - made)
        asked = tuple(
            ContainerRequest(f"c{n}", spread * chance.choice((1, 1, 2)), cores * spread)
            for n, cores in enumerate(chance.choices((5, 5, 5, 5, 10) if timed else (0,), k=count))
        )
        found = allocate_gpus(here, PodRequest(uid, "", spread, asked))
        if not isinstance(found, Allocation):  # a smaller one fits
            continue
        here.add(found)
        made += count
        names = tuple(each.name for each in asked)
        rest = (asked, "", names, "")
        yield Pod(uid, "default", uid, "", "", False, spread, *rest), found  # noqa: FBT003


def wanted(folder: Path, number: int) -> Iterator[Wanted]:
    """The containers of one node, with the annotations that the binding writes."""
    mode = CORE_MEM if number % 2 else CGPU
    world = PodWorld(folder / f"node{number}", mode)
    gpus = facts(world)
    engine = crio if number % 3 == 0 else containerd
    for pod, allocation in pods("gpu-a", mode, gpus, number):
        own = write_annotations(allocation, pod, gpus, 0)
        for name, part in allocation.containers.items():
            yield Wanted(
                f"{pod.uid}-{name}",
                pod,
                name,
                world,
                engine(own, pod.uid, name),
                {uuid: gpus[uuid].mib_of(part.units) * MIB for uuid in allocation.gpus},
                part.cores // 5 or 1,
            )
