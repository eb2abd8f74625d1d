"""The runtime itself creates a thousand containers, while the agents of their nodes come and go.

K8S-11.
"""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from cgpu_node import podspecs
from cgpu_node.allocation_annotation import ANNOTATION
from cgpu_node.podspecs import Current, Limit, PodSpec
from lab.worlds.identity import CONTAINERS, NODES, Wanted, wanted

if TYPE_CHECKING:
    from pathlib import Path

    from lab.worlds.pods import PodWorld

pytestmark = pytest.mark.integration

ALL = ["NVIDIA_VISIBLE_DEVICES=all", "ALIYUN_COM_GPU_MEM_CONTAINER=1"]
# In a shell, which takes half the time of another Python.
LOW_LEVEL = '#!/bin/sh\nfor each; do [ "$each" = state ] && exit 1; done\nexit 0\n'
SHIFT = 25  # containers that a node creates until its agent may begin or end


class Nodes:
    """Some nodes, their agents, and the containers that their kubelets want.

    Attributes:
        wrong: what is not as decided.
        living: the ids of the containers that live, by node.
        refused: how many were refused.
    """

    def __init__(self, wants: list[Wanted], seed: int) -> None:
        self.chance = random.Random(seed)
        self.wants = wants
        self.chance.shuffle(wants)
        self.agents = {each.world: Current(str(each.world.state)) for each in wants}
        for world in self.agents:
            world.stub().write_text(LOW_LEVEL)
        self.wrong: list[str] = []
        self.living: dict[PodWorld, set[str]] = {world: set() for world in self.agents}
        self.refused = 0

    def work(self) -> None:
        """Create everything, some of it again, and some that is not for its node or pod."""
        for number, each in enumerate(self.wants):
            if number % SHIFT == 0:
                self.change_agents()
            if number % 10 == 0:
                self.refuse(each, number)
            self.create(each, each.id)
            if number % 10 == 5:  # its program ends, and the kubelet starts it again
                (each.world.runs / each.id).rmdir()
                self.living[each.world].remove(each.id)
                self.create(each, f"{each.id}-1")
        for agent in self.agents.values():
            agent.end()

    def change_agents(self) -> None:
        """An agent that begins leaves what the node's pods ask for, and goes on to be there."""
        for world, agent in self.agents.items():
            if self.chance.random() < 0.5:
                agent.end()
                continue
            for each in self.wants:
                if each.world is world:
                    asked = {one.name: Limit(one.units, one.cores) for one in each.pod.containers}
                    podspecs.write_spec(str(world.state), each.pod.uid, PodSpec("ml/a-pod", asked))
            assert agent.begin()

    def create(self, each: Wanted, container: str) -> None:
        """As an engine does."""
        world = each.world
        (world.runs / container).mkdir()
        done = self.run(world, each.annotations, container)
        if done:
            self.wrong.append(done)
            return
        self.living[world].add(container)
        shown = set(world.variables()["NVIDIA_VISIBLE_DEVICES"].split(","))
        if problem := each.has(container):
            self.wrong.append(problem)
        elif shown != set(each.caps):
            self.wrong.append(f"{container}: it is shown {shown}")

    def refuse(self, each: Wanted, number: int) -> None:
        """A container with the decision of another pod, or of another node."""
        if number % 20:
            decision = json.loads(each.annotations[ANNOTATION])
            other = {ANNOTATION: json.dumps({**decision, "node": "gpu-b"})}
            sentence = "node=gpu-b: expected gpu-a, this node"
        else:
            others = (one for one in self.wants if one.pod.uid != each.pod.uid)
            annotations = next(others).annotations
            other = {ANNOTATION: annotations[ANNOTATION]}
            sentence = f"expected {each.pod.uid}, the UID of this pod"
        done = self.run(each.world, {**each.annotations, **other}, f"{each.id}-refused")
        if sentence not in done:
            self.wrong.append(f"{each.id}: it is not refused: {done}")
        self.refused += 1

    @staticmethod
    def run(world: PodWorld, annotations: dict[str, str], container: str) -> str:
        """What the runtime complains of; "": nothing."""
        stub = world.folder / "stub-runc"
        done = world.create(annotations, ALL, name=container, lowlevel=stub)
        return done.stderr if done.returncode else ""


@pytest.mark.long
def test_k8s_11_a_thousand_containers_that_the_runtime_creates_have_what_was_decided(
    tmp_path: Path,
) -> None:
    """Of 10 nodes, two at a time; containers of one name in all pods, some created again."""
    halves = [
        Nodes([each for n in range(half, NODES, 2) for each in wanted(tmp_path, n)], half)
        for half in range(2)
    ]
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(half.work) for half in halves]:
            done.result()
    assert [each for half in halves for each in half.wrong] == []
    assert [half.refused for half in halves] == [NODES * CONTAINERS // 20] * 2
    for half in halves:
        for world, living in half.living.items():
            assert len(living) == CONTAINERS
            assert world.shares() == sorted(living)
