"""A cluster with a real node, as its users and its administrator see it: by kubectl."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import yaml

from cgpu_k8s.names import FACTS
from lab.containers.enclosure import wait_until
from lab.kubernetes import chart
from lab.machine.cri import IMAGE

if TYPE_CHECKING:
    from lab.kubernetes.kubelet import KubeletNode

Json = dict[str, Any]
MEM, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
CORE = "aliyun.com/gpu-core.percentage"
SCHEDULER = "ack-co-scheduler"
PATIENCE = 120  # seconds


class Kubectl:
    """kubectl on the cluster of a node."""

    def __init__(self, node: KubeletNode) -> None:
        self.node = node

    def __call__(self, *words: str, given: str = "") -> str:
        where, home = f"--kubeconfig={self.node.plane.kubeconfig()}", self.node.plane.folder
        return chart.done("kubectl", *words, where, home=home, given=given)

    def inspect(self, *words: str) -> str:
        """What ``kubectl inspect cgpu`` prints."""
        config = f"--kubeconfig={self.node.plane.kubeconfig()}"
        command = [sys.executable, "-m", "cgpu_k8s.inspect.main", *words, config]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def get(self, *words: str) -> Any:
        """An object, or a list of them."""
        return json.loads(self("get", *words, "--output=json"))

    def create(self, *objects: Json) -> None:
        """Create objects, not waiting for anything."""
        self("create", "--filename=-", given=yaml.safe_dump_all(objects))

    def offers(self) -> tuple[str, ...]:
        """GPUs, GiB and percent of time that pods can have; empty where the node offers none.

        The agent publishes them, and then which GPUs they are: pods are placed after that.
        """
        found: dict[str, str] = {}
        for node in self._listed("nodes"):  # none before the kubelet has made it
            if FACTS in node["metadata"].get("annotations", {}):
                found = node["status"]["allocatable"]
        return tuple(found.get(name, "") for name in (COUNT, MEM, CORE))

    def await_gpus(self) -> None:
        """Return when the node offers all of its two V100."""
        offered = ("2", "30", "200")
        self.node.wait_until(
            lambda: self.offers() == offered, f"{offered} is offered", "agent", "kubelet"
        )

    def published(self, resource: str) -> str:
        """How much of a resource the node has for pods; "": it does not name it."""
        [node] = self._listed("nodes")
        found: dict[str, str] = node["status"]["allocatable"]
        return found.get(resource, "")

    def _listed(self, kind: str) -> list[Json]:
        """All nodes, or pods: without kubectl, which takes 0.1 s of a processor each time."""
        where = "" if kind == "nodes" else "namespaces/default/"
        found: list[Json] = self.node.plane.read(f"/api/v1/{where}{kind}")["items"]
        return found

    def pods(self, *names: str) -> dict[str, Json]:
        """The pods of these names that there are."""
        found = {each["metadata"]["name"]: each for each in self._listed("pods")}
        return {name: found[name] for name in names if name in found}

    def running(self, *names: str) -> list[Json]:
        """These pods, once all their containers run."""

        def are_running() -> bool:
            found = self.pods(*names)
            return set(found) == set(names) and all(map(_runs, found.values()))

        try:
            wait_until(are_running, f"{names} run", PATIENCE)
        except AssertionError as error:
            shown = self("describe", "pod", *names)
            raise AssertionError(f"{error}\n{shown}") from None
        return list(self.pods(*names).values())

    def seen(self, pod: Json, container: str = "main") -> dict[str, int]:
        """The GPUs that nvidia-smi shows in a container: MiB by UUID."""
        listed = self.execute(pod, container, "nvidia-smi", "-L")
        uuids = re.findall(r"UUID: (GPU-[0-9a-f-]+)", listed)
        sizes = re.findall(r"/ *(\d+)MiB", self.execute(pod, container, "nvidia-smi"))
        return dict(zip(uuids, map(int, sizes), strict=True))

    def execute(self, pod: Json, container: str, *words: str) -> str:
        """What a program prints in a container.

        By the engine's client: the kubelet of the tests serves nothing, so kubectl cannot.
        """
        return self.node.execute(pod, container, *words)

    def clear(self) -> None:
        """Delete all pods, and return when the node has given back what they had."""
        words = ("--all", "--grace-period=0", "--force", "--wait=true", "--timeout=60s")
        self("delete", "pods", *words)
        wait_until(lambda: not self.node.containers(), "what pods had is given back", PATIENCE)


def _runs(pod: Json) -> bool:
    statuses = pod["status"].get("containerStatuses", [])
    wanted = len(pod["spec"]["containers"])
    return len(statuses) == wanted and all("running" in each["state"] for each in statuses)


def decided(pod: Json, container: str = "main") -> dict[str, int]:
    """What the scheduler decided for a container: MiB by UUID."""
    found = json.loads(pod["metadata"]["annotations"]["cgpu/allocation"])
    assert found["pod"] == pod["metadata"]["uid"]
    return {uuid: grant["mem"] for uuid, grant in found["containers"][container].items()}


def asking(name: str, *limits: Json, labels: Json | None = None, **spec: Any) -> Json:
    """A pod with a container for each of ``limits``, ``main`` and ``side``, which sleep."""
    containers = [
        {
            "name": container,
            "image": IMAGE,
            "imagePullPolicy": "Never",
            "resources": {"limits": dict(each)},
        }
        for container, each in zip(("main", "side"), limits, strict=False)
    ]
    about = {
        "schedulerName": SCHEDULER,
        "hostNetwork": True,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {**about, "containers": containers, **spec},
    }
