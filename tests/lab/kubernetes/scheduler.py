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

from lab.containers.enclosure import wait_until
from lab.kubernetes import chart
from lab.kubernetes.control_plane import ACCOUNT, ControlPlane
from lab.kubernetes.programs import free_port, kubernetes, running, tail

Json = dict[str, Any]
EXTENDER, LEASE = "cgpu-extender", "cgpu-scheduler"
_GROUP = "rbac.authorization.k8s.io"
_RBAC = f"{_GROUP}/v1"


def install(plane: ControlPlane) -> None:
    """Apply the chart's manifests, and let the extender use its roles.

    Without the webhooks, as no Service works here: ``lab.worlds.guard`` has them.
    """
    objects = chart.rendered("1.20.2", plane.folder)
    _apply(plane, [each for each in objects if "Webhook" not in each["kind"]])
    grant(plane)


def grant(plane: ControlPlane) -> None:
    """Give the extender, as a user of its own, its roles alone.

    In its pod it has the account of the scheduler, which may do more.
    """
    objects: list[Json] = []
    for role in chart.rendered("1.20.2", plane.folder):
        kind = role["kind"]
        if kind not in ("Role", "ClusterRole") or role["metadata"]["name"] != EXTENDER:
            continue
        about = {"name": f"{EXTENDER}-alone"}
        if kind == "Role":
            about["namespace"] = role["metadata"]["namespace"]
        binding: Json = {"apiVersion": _RBAC, "kind": f"{kind}Binding", "metadata": about}
        binding["roleRef"] = {"apiGroup": _GROUP, "kind": kind, "name": EXTENDER}
        binding["subjects"] = [{"apiGroup": _GROUP, "kind": "User", "name": EXTENDER}]
        objects.append(binding)
    _apply(plane, objects)


def _apply(plane: ControlPlane, objects: list[Json]) -> None:
    words = ["apply", "--filename=-", f"--kubeconfig={plane.kubeconfig()}"]
    chart.done("kubectl", *words, home=plane.folder, given=yaml.safe_dump_all(objects))


@contextlib.contextmanager
def scheduling(plane: ControlPlane, user: str = EXTENDER) -> Iterator[str]:
    """A scheduler and its extender, as ``user``, until the end of the block: its address."""
    port, health = free_port(), free_port()
    address = f"http://127.0.0.1:{port}"
    extender = [sys.executable, "-m", "cgpu_k8s.extender", "--listen", f"127.0.0.1:{port}",
                "--kubeconfig", plane.kubeconfig(user), "--lease", f"{chart.NAMESPACE}/{LEASE}",
                "--host", socket.gethostname()]  # fmt: skip
    scheduler = [kubernetes("kube-scheduler"), f"--config={_configuration(plane, address, health)}",
                 "--secure-port=0"]  # fmt: skip
    logs = plane.folder / "extender.log", plane.folder / "scheduler.log"
    with running(logs[0], extender), running(logs[1], scheduler):
        try:
            for program, where in (
                ("extender", f"{address}/readyz"),
                ("scheduler", f"http://127.0.0.1:{health}/healthz"),
            ):
                wait_until(lambda at=where: _answers(at), f"the {program} is ready", 60)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{tail(logs[0])}\n{tail(logs[1])}") from None
        yield address


def _configuration(plane: ControlPlane, address: str, health: int) -> Path:
    """The chart's configuration, for an extender elsewhere and a scheduler outside the cluster."""
    path = plane.folder / "scheduler.yaml"
    found = chart.one(chart.rendered("1.20.2", plane.folder), "ConfigMap", LEASE)
    content = yaml.safe_load(found["data"]["config.yaml"])
    content["clientConnection"] = {"kubeconfig": str(plane.kubeconfig(ACCOUNT))}
    for key in ("healthzBindAddress", "metricsBindAddress"):
        content[key] = f"127.0.0.1:{health}"  # the chart's port is one for all of the machine
    content["extenders"][0]["urlPrefix"] = f"{address}/gpushare-scheduler"
    path.write_text(yaml.safe_dump(content))
    return path


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False
