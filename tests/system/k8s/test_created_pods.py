"""Pods that containerd's CRI plugin creates on a node that follows decisions (K8S-11, K8S-15)."""

from __future__ import annotations

import json
import random
import re
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from cgpu_node.allocation_annotation import (
    ANNOTATION,
    AllocationAnnotation,
    Grant,
    format_annotation,
)
from lab.machine.cri import IMAGE, Cri, Pod, served
from lab.machine.installed import Installed
from lab.machine.node import T4

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lab.containers.engines import Volume

pytestmark = pytest.mark.system

NODE = "gpu-a"
EVERYTHING = {"NVIDIA_VISIBLE_DEVICES": "all", "ALIYUN_COM_GPU_MEM_CONTAINER": "9"}


@pytest.fixture(scope="module", name="installed")
def _installed() -> Iterator[Installed]:
    machine = Installed("pods", T4, T4)
    setting = {"version": 1, "node": NODE, "mode": "cgpu"}
    machine.write("/etc/cgpu/kubernetes.json", json.dumps(setting))
    yield machine
    machine.enclosure.stop()


@pytest.fixture(scope="module", name="cri")
def _cri(installed: Installed, debian_root: Path) -> Iterator[Cri]:
    docker = installed.docker(lambda: None)
    docker.load("debian", debian_root)
    with served(installed, docker, "install", "containerd") as engine:
        yield engine
    docker.stop()


@pytest.fixture(scope="module", name="gpus")
def _gpus(installed: Installed) -> list[str]:
    installed.cgpu("probe")
    facts: dict[str, Any] = json.loads(installed.read("/run/cgpu/node.json"))
    return [gpu["uuid"] for gpu in facts["gpus"]]


def decided(uid: str, containers: dict[str, dict[str, int]], node: str = NODE) -> dict[str, str]:
    grants = {
        name: {uuid: Grant(mib) for uuid, mib in parts.items()}
        for name, parts in containers.items()
    }
    return {ANNOTATION: format_annotation(AllocationAnnotation(uid, node, grants))}


def seen(cri: Cri, container: str) -> dict[str, int]:
    """The GPUs that a container's nvidia-smi shows: UUID and MiB of each."""
    uuids = re.findall(r"UUID: (GPU-[0-9a-f-]+)", cri.exec(container, "nvidia-smi", "-L"))
    sizes = re.findall(r"/ *(\d+)MiB", cri.exec(container, "nvidia-smi"))
    return dict(zip(uuids, map(int, sizes), strict=True))


def variables(cri: Cri, container: str) -> dict[str, str]:
    """Those of its first process; what an engine starts in it later has the pod's own."""
    entries = cri.exec(container, "cat", "/proc/1/environ").rstrip("\0").split("\0")
    return dict(entry.partition("=")[::2] for entry in entries)


def test_k8s_11_containers_in_any_order_see_what_their_pods_were_given(
    cri: Cri, gpus: list[str], guests: list[Volume]
) -> None:
    """Eight pods, two of them with two containers with GPUs, one with both GPUs, one with none."""
    wanted = {f"uid-{n}": {"main": {gpus[n % 2]: n % 3 * 300 + 700}} for n in range(6)}
    wanted["uid-1"]["side"] = {gpus[0]: 500}
    wanted["uid-2"]["side"] = {gpus[1]: 600}
    wanted["uid-6"] = {"main": {gpus[1]: 800, gpus[0]: 900}}
    with ExitStack() as pods:
        made: dict[str, Pod] = {
            uid: pods.enter_context(cri.pod("cgpu", decided(uid, containers), uid))
            for uid, containers in wanted.items()
        }
        made["uid-7"] = pods.enter_context(cri.pod("cgpu", uid="uid-7"))
        order = [(uid, name) for uid, containers in wanted.items() for name in containers]
        order += [("uid-7", "main"), ("uid-0", "helper")]
        random.Random(1).shuffle(order)
        created = {
            (uid, name): cri.create(made[uid], name, IMAGE, EVERYTHING, guests)
            for uid, name in order
        }
        for uid, containers in wanted.items():
            for name, parts in containers.items():
                assert seen(cri, created[uid, name]) == parts, (uid, name)
        both = variables(cri, created["uid-6", "main"])
        assert both["NVIDIA_VISIBLE_DEVICES"] == f"{gpus[1]},{gpus[0]}"
        assert both["ALIYUN_COM_GPU_MEM_CONTAINER"] == "1,1"
        for key in (("uid-7", "main"), ("uid-0", "helper")):
            assert "cgpu" not in cri.exec(created[key], "ls", "/dev")
            assert variables(cri, created[key])["NVIDIA_VISIBLE_DEVICES"] == "void"


@pytest.mark.parametrize(
    ("uid", "node", "sentence"),
    [
        ("uid-other", NODE, "pod=uid-other: expected uid-here, the UID of this pod"),
        ("uid-here", "gpu-b", "node=gpu-b: expected gpu-a, this node"),
    ],
)
def test_k8s_15_an_events_sentence_names_what_is_not_for_this_pod(
    cri: Cri, gpus: list[str], uid: str, node: str, sentence: str
) -> None:
    annotations = decided(uid, {"main": {gpus[0]: 1000}}, node)
    with (
        cri.pod("cgpu", annotations, "uid-here") as pod,
        pytest.raises(grpc.RpcError, match=f"cgpu/allocation: {sentence}"),
    ):
        cri.create(pod, "main", IMAGE, EVERYTHING)
