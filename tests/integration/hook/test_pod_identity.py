"""A thousand containers in any order: each has what was decided for it, and nothing else (K8S-11).

Kubelet and agent are not asked: a container that was bound while they were down, or whose node has
just started, finds everything in its own configuration.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from cgpu_env.errors import CgpuError
from cgpu_hook import container
from cgpu_hook.bundle import Creation, edit_bundle
from cgpu_hook.container import Setting
from cgpu_k8s.objects.decisions import write_annotations
from cgpu_k8s.objects.gpus import Fact
from cgpu_k8s.objects.pods import Pod
from cgpu_node.allocation import BINPACK, Container, Decision, Need, Node, decide
from cgpu_node.settings.config import load_config
from cgpu_node.settings.kubernetes import CGPU, CORE_MEM
from cgpu_node.shares.record import pod_of, read
from lab.worlds.pods import PodWorld, containerd, crio

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cgpu_node.shares.record import Record

pytestmark = pytest.mark.integration

NODES, GPUS, CONTAINERS = 10, 8, 100  # on each node
MIB = 1 << 20


class Wanted(NamedTuple):
    """A container to create, and what it is to have: MiB by UUID, and its weight."""

    id: str
    world: PodWorld
    annotations: dict[str, str]
    caps: dict[str, int]
    weight: int


def facts(world: PodWorld) -> dict[str, Fact]:
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
        gpu["uuid"]: Fact(gpu["uuid"], gpu["index"], gpu["memory_bytes"] // MIB)
        for gpu in content["gpus"]
    }


def pods(node: str, mode: str, gpus: dict[str, Fact], seed: int) -> Iterator[tuple[Pod, Decision]]:
    """Pods of one to three containers on one or two GPUs, as the allocator places them."""
    chance, timed = random.Random(seed), mode == CORE_MEM
    here = Node(node, mode, BINPACK, (fact.gpu() for fact in gpus.values()))
    made = 0
    while made < CONTAINERS:
        uid = f"{seed:08x}-{made:04x}-4000-8000-{chance.getrandbits(48):012x}"
        spread = chance.choice((1,) * 9 + (2,))
        count = min(chance.randint(1, 3), CONTAINERS - made)
        asked = tuple(
            Container(f"c{n}", spread * chance.choice((1, 1, 2)), cores * spread)
            for n, cores in enumerate(chance.choices((5, 5, 5, 5, 10) if timed else (0,), k=count))
        )
        found = decide(here, Need(uid, "", spread, asked))
        if not isinstance(found, Decision):  # a smaller one fits
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
    for pod, decision in pods("gpu-a", mode, gpus, number):
        own = write_annotations(decision, pod, gpus, 0)
        for name, part in decision.containers.items():
            yield Wanted(
                f"{pod.uid}-{name}",
                world,
                engine(own, pod.uid, name),
                {uuid: gpus[uuid].mib_of(part.units) * MIB for uuid in decision.gpus},
                part.cores // 5 or 1,
            )


def create(each: Wanted, monkeypatch: pytest.MonkeyPatch) -> Record | None:
    """What the editor gives a container; its variables ask for something else."""
    world = each.world
    config = load_config(str(world.etc / "cgpu" / "config.toml"))
    monkeypatch.setattr(container, "load_config", lambda: config)
    env = ["NVIDIA_VISIBLE_DEVICES=all", "ALIYUN_COM_GPU_MEM_CONTAINER=1"]
    world.write_config(env, annotations=each.annotations)
    lives = world.runs / each.id
    lives.mkdir(exist_ok=True)
    creation = Creation(str(world.config), str(world.bundle), each.id, os.getpid(), str(lives))
    edit_bundle(creation, Setting(str(world.state), str(world.driver)), lambda _: None)
    return read(str(world.state / "containers" / each.id))


def test_k8s_11_a_thousand_containers_in_any_order_have_what_was_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 10 nodes with GPUs of different sizes; also when each is asked for out of turn."""
    everything = [each for number in range(NODES) for each in wanted(tmp_path, number)]
    assert len(everything) == 1000
    random.Random(1).shuffle(everything)
    wrong = []
    for each in everything:
        found = create(each, monkeypatch)
        got = found and ({gpu.uuid: gpu.cap_bytes for gpu in found.gpus}, found.weight)
        pod = found and pod_of(found.directory)
        known = f"{pod.uid}-{pod.container}" if pod else ""
        if got != (each.caps, each.weight) or known != each.id:
            wrong.append((each.id, got))
    assert wrong == []
    for world in {each.world for each in everything}:
        assert len(world.shares()) == CONTAINERS


def test_k8s_11_the_decision_of_another_pod_gives_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred pods that show their neighbour's annotations."""
    own = list(wanted(tmp_path, 0))
    pairs = list(zip(own, own[5:], strict=False))  # a pod has three containers at most
    engine_s = {name for each in own[:1] for name in each.annotations if name.startswith("io.")}
    for each, other in pairs:
        stolen = {name: text for name, text in other.annotations.items() if name not in engine_s}
        kept = {name: each.annotations[name] for name in engine_s}
        with pytest.raises(CgpuError, match="the UID of this pod"):
            create(each._replace(annotations={**stolen, **kept}), monkeypatch)
    assert own[0].world.shares() == []
