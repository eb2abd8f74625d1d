"""The agent is away for ten minutes while pods come and go. K8S-11, K8S-12."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import cgpu_native
from cgpu_k8s.apiserver.resources import PODS
from cgpu_k8s.node.agent import LOOK
from cgpu_k8s.objects.allocations import Allocation, write_annotations
from cgpu_k8s.objects.gpus import read_facts
from cgpu_k8s.objects.nodes import BINPACK
from cgpu_k8s.objects.pods import read_pod
from cgpu_k8s.scheduler.allocation import NodeInfo, allocate_gpus
from cgpu_node import podspecs
from cgpu_node.settings.kubernetes import CORE_MEM
from lab.containers.enclosure import wait_until
from lab.kubernetes.agents import Lab, agent_lab, asked
from lab.kubernetes.objects import binding, pod, pod_path, pods_path
from lab.worlds.pods import PodWorld, containerd

if TYPE_CHECKING:
    from pathlib import Path

    from lab.kubernetes.fake_server import FakeServer

pytestmark = pytest.mark.integration

LIMITS = {"aliyun.com/gpu-mem": "4", "aliyun.com/gpu-core.percentage": "30"}
AWAY = 600.0  # seconds
MIB = 1 << 20


class ExtenderBindingArgs(NamedTuple):
    """A pod that its scheduler has bound: its UID, annotations and cap."""

    uid: str
    annotations: dict[str, str]
    cap: tuple[str, int]


class Cluster:
    """A scheduler and a kubelet beside a node's agent."""

    def __init__(self, lab: Lab, world: PodWorld) -> None:
        self.lab, self.world = lab, world
        offered = read_facts(json.dumps(lab.facts())).gpus
        self.gpus = {gpu.uuid: gpu for gpu in offered}
        self.node = NodeInfo("gpu-a", CORE_MEM, BINPACK, offered)
        path = world.state / "node.json"
        content = json.loads(path.read_text())
        like: dict[str, Any] = content["gpus"][0]
        content["gpus"] = [
            {**like, "uuid": gpu.uuid, "index": gpu.index, "memory_bytes": gpu.mib * MIB}
            for gpu in offered
        ]
        path.write_text(json.dumps(content))

    def bind(self, name: str) -> ExtenderBindingArgs:
        """Create a pod, decide and bind."""
        made = read_pod(asked(self.lab.fake, "POST", pods_path(), pod(name, LIMITS)))
        assert made.request
        found = allocate_gpus(self.node, made.request)
        assert isinstance(found, Allocation)
        self.node.add(found)
        notes = write_annotations(found, made, self.gpus, 0)
        body = binding(name, "gpu-a", notes)
        asked(self.lab.fake, "POST", pod_path(name, "binding"), body)
        [uuid] = found.gpus
        return ExtenderBindingArgs(made.uid, notes, (uuid, self.gpus[uuid].mib_of(4) * MIB))

    def start(self, bound: ExtenderBindingArgs) -> None:
        """Create the pod's container, which lives from then on."""
        (self.world.runs / bound.uid).mkdir(parents=True)
        done = self.world.create(containerd(bound.annotations, bound.uid), name=bound.uid)
        assert done.returncode == 0, done

    def cap(self, bound: ExtenderBindingArgs) -> tuple[str, int]:
        """What its container may hold now, of which GPU."""
        [gpu] = cgpu_native.read_limits(f"{self.world.state}/containers/{bound.uid}/limits").gpus
        return gpu.uuid, gpu.cap_bytes


def age(folder: Path, seconds: float) -> None:
    """Everything in a folder was written so long ago."""
    when = time.time() - seconds
    for path in folder.rglob("*"):
        os.utime(path, (when, when), follow_symlinks=False)


def test_k8s_12_pods_start_without_an_agent_and_the_next_one_takes_nothing_away(
    fake: FakeServer, tmp_path: Path
) -> None:
    """Nothing on the node counts minutes, but its files are as old as if they had passed."""
    world = PodWorld(tmp_path / "world", CORE_MEM)
    with agent_lab(fake, tmp_path, CORE_MEM, state=world.state) as lab:
        lab.setting = world.etc / "cgpu" / "kubernetes.json"
        with lab.agent():
            wait_until(lambda: lab.offers(CORE_MEM), "the node offers its GPUs")
            cluster = Cluster(lab, world)
            first = cluster.bind("first")
            cluster.start(first)
        before = lab.facts(), lab.resources(), lab.setting.read_text()
        age(world.state, AWAY)
        age(world.etc, AWAY)
        later = [cluster.bind(f"later-{n}") for n in range(5)]
        for each in later:
            cluster.start(each)
        asked(fake, "DELETE", PODS.path("first", namespace="default"), {"gracePeriodSeconds": 0})
        (world.runs / first.uid).rmdir()
        assert (lab.facts(), lab.resources(), lab.setting.read_text()) == before
        wrote = len(lab.writes())
        with lab.agent():
            wait_until(lambda: podspecs.is_current(str(world.state)), "the next one knows all")
            lab.label("cgpu")
            wait_until(lambda: "GpuModeHeld" in dict(lab.events()), "and acts on what it sees")
            time.sleep(LOOK + 1)  # also on who has which share
            [ours, event] = lab.writes()[wrote:]  # the label, and nothing else of the node
            assert ours == "PATCH /api/v1/nodes/gpu-a"
            assert event == "POST /api/v1/namespaces/default/events"
            assert sorted(podspecs.list_uids(str(world.state))) == sorted(one.uid for one in later)
            assert [cluster.cap(each) for each in later] == [each.cap for each in later]
            assert (lab.facts(), lab.resources(), lab.setting.read_text()) == before
