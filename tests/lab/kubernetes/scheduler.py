"""The real kube-scheduler with cgpu's extender, on a real control plane."""

from __future__ import annotations

import contextlib
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from cgpu_k8s.api.client import Client
from cgpu_k8s.api.resources import Resource
from lab.containers.enclosure import wait_until
from lab.kubernetes.control_plane import ControlPlane
from lab.kubernetes.programs import free_port, kubernetes, running, tail

Json = dict[str, Any]
EXTENDER, SCHEDULER = "cgpu-extender", "system:kube-scheduler"
NAMESPACE, LEASE = "kube-system", "cgpu-scheduler"
_RBAC = "rbac.authorization.k8s.io"
# What docs/kubernetes.md grants, and no more.
_RULES: list[Json] = [
    {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["list", "watch"]},
]
# The scheduler's own role names another lease.
_LEASES: list[Json] = [
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
     "verbs": ["create", "get", "update"]},
]  # fmt: skip


async def grant(client: Client) -> None:
    """Give the extender and the scheduler their rights."""
    for user, rules in {EXTENDER: _RULES, SCHEDULER: _LEASES}.items():
        name = f"{user.rpartition(':')[2]}-test"
        about: Json = {"apiVersion": f"{_RBAC}/v1", "metadata": {"name": name}}
        role = {**about, "kind": "ClusterRole", "rules": rules}
        await client.post(Resource(_RBAC, "v1", "clusterroles").path(), role)
        binding = {
            **about,
            "kind": "ClusterRoleBinding",
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": _RBAC, "kind": "User", "name": user}],
        }
        await client.post(Resource(_RBAC, "v1", "clusterrolebindings").path(), binding)


@contextlib.contextmanager
def scheduling(plane: ControlPlane) -> Iterator[str]:
    """A scheduler and its extender until the end of the block: the extender's address."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    extender = [sys.executable, "-m", "cgpu_k8s.extender", "--listen", f"127.0.0.1:{port}",
                "--kubeconfig", plane.kubeconfig(EXTENDER), "--lease", f"{NAMESPACE}/{LEASE}",
                "--host", socket.gethostname()]  # fmt: skip
    scheduler = [kubernetes("kube-scheduler"), f"--config={_configuration(plane, address)}",
                 "--port=0", "--secure-port=0"]  # fmt: skip
    logs = plane.folder / "extender.log", plane.folder / "scheduler.log"
    with running(logs[0], extender), running(logs[1], scheduler):
        try:
            wait_until(lambda: _ready(address), "the extender is ready", 60)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{tail(logs[0])}\n{tail(logs[1])}") from None
        yield address


def _configuration(plane: ControlPlane, address: str) -> Path:
    """The configuration of docs/kubernetes.md, in the version that 1.20 reads."""
    path = plane.folder / "scheduler.yaml"
    content = {
        "apiVersion": "kubescheduler.config.k8s.io/v1beta1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(plane.kubeconfig(SCHEDULER))},
        "leaderElection": {
            "leaderElect": True,
            "resourceNamespace": NAMESPACE,
            "resourceName": LEASE,
        },
        "percentageOfNodesToScore": 100,
        "profiles": [{"schedulerName": "cgpu-scheduler"}, {"schedulerName": "ack-co-scheduler"}],
        "extenders": [
            {
                "urlPrefix": f"{address}/gpushare-scheduler",
                "filterVerb": "filter",
                "prioritizeVerb": "prioritize",
                "preemptVerb": "preempt",
                "bindVerb": "bind",
                "weight": 1000,
                "nodeCacheCapable": True,
                "ignorable": False,
                "httpTimeout": "30s",
                "managedResources": [{"name": "aliyun.com/gpu-mem", "ignoredByScheduler": False}],
            }
        ],
    }
    path.write_text(yaml.safe_dump(content))
    return path


def _ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/readyz", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False
