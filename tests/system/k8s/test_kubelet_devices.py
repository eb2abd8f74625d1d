"""A real kubelet whose node offers memory and time as devices (K8S-1)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from lab.kubernetes import scheduler
from lab.kubernetes.control_plane import control_plane
from lab.kubernetes.kubectl import CORE, COUNT, MEM, Kubectl, asking, decided
from lab.kubernetes.kubelet import kubelet_node
from lab.kubernetes.programs import Release

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

ROLE = "clusterrole/cgpu-agent"


def test_k8s_1_pods_are_shared_and_outlive_kubelets_where_nobody_writes_the_status(
    tmp_path_factory: pytest.TempPathFactory, debian_root: Path, release: Release
) -> None:
    with control_plane(tmp_path_factory.mktemp("plane"), release) as plane:
        scheduler.install(plane)
        with (
            kubelet_node(plane, debian_root, "core_mem", resources="devices") as node,
            scheduler.scheduling(plane),
        ):
            kubectl = Kubectl(node)
            rules = kubectl.get(ROLE)["rules"]
            for rule in rules:
                rule["resources"] = [name for name in rule["resources"] if "status" not in name]
            kubectl("patch", ROLE, f"--patch={json.dumps({'rules': rules})}", "--type=merge")
            kubectl.await_gpus()
            kubectl.create(
                asking("one", {MEM: 6, CORE: 40}, {MEM: 3, CORE: 20}),
                asking("wide", {MEM: 8, CORE: 60}, labels={COUNT: "2"}),
            )
            pods = kubectl.running("one", "wide")
            had = [pod["status"]["containerStatuses"][0]["containerID"] for pod in pods]
            for pod, container in ((pods[0], "main"), (pods[0], "side"), (pods[1], "main")):
                assert kubectl.seen(pod, container) == decided(pod, container)
            node.stop("kubelet")
            node.start_kubelet()
            kubectl.create(asking("plain", {}))
            kubectl.running("plain")  # after the kubelet has let in the others again
            kubectl.await_gpus()
            kubectl.create(asking("late", {MEM: 2, CORE: 10}))
            [late] = kubectl.running("late")
            assert kubectl.seen(late) == decided(late)
            pods = kubectl.running("one", "wide")
            now = [pod["status"]["containerStatuses"][0]["containerID"] for pod in pods]
            assert now == had
            kubectl.clear()
