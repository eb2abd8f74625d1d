"""A bare node on which the chart's own pods run: those of its DaemonSets, from cgpu's image."""

from __future__ import annotations

import urllib.parse
from typing import TYPE_CHECKING, Any

from lab.cluster.bare_node import BareNode
from lab.cluster.dra_node import Claiming
from lab.containers.enclosure import wait_until
from lab.kubernetes import chart
from lab.kubernetes.kubectl import PATIENCE
from lab.kubernetes.objects import pods_path

if TYPE_CHECKING:
    from pathlib import Path

    from lab.kubernetes.control_plane import ControlPlane
    from lab.machine.installed import Installed

Json = dict[str, Any]
# What makes the pods, their accounts and what these trust, and removes what the chart has made.
CONTROLLERS = ("daemonset-controller", "garbage-collector-controller",
               "root-ca-certificate-publisher-controller", "serviceaccount-controller")  # fmt: skip
DRIVER, AGENT = "dra-driver", "agent"
_KUBELETS = "/var/lib/kubelet"
_ENGINE = "/run/containerd/containerd.sock"
# What API servers that are built for OpenShift also mount into pods with an account's token.
_MOUNTED = ("openshift-service-ca.crt", "--from-literal=service-ca.crt=-")
# The chart's pods use the node's network, as pods have none of their own here, and the API server's
# own address, as there are no Services. Simulated GPUs are files beside their driver's libraries,
# which its users write.
_CHANGES = """
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: pods-of-the-chart}
spec:
  failurePolicy: Fail
  reinvocationPolicy: Never
  matchConstraints:
    objectSelector: {matchLabels: {app.kubernetes.io/name: cgpu}}
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: >-
        Object{spec: Object.spec{hostNetwork: true, containers: object.spec.containers.map(c,
          Object.spec.containers{
            name: c.name,
            env: [
              Object.spec.containers.env{name: "KUBERNETES_SERVICE_HOST", value: "<host>"},
              Object.spec.containers.env{name: "KUBERNETES_SERVICE_PORT", value: "<port>"}],
            volumeMounts: c.?volumeMounts.orValue([]).filter(m, m.mountPath == "/driver").map(m,
              Object.spec.containers.volumeMounts{
                name: m.name, mountPath: m.mountPath, readOnly: false})})}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: pods-of-the-chart}
spec: {policyName: pods-of-the-chart}
"""
_ASKED = """
apiVersion: v1
kind: Pod
metadata: {name: asked, labels: {app.kubernetes.io/name: cgpu}}
spec: {containers: [{name: main, image: none}]}
"""


class PodNode(BareNode):
    """The node. Its kubelet's folders and its engine's socket are at their usual paths."""

    def __init__(self, installed: Installed, plane: ControlPlane) -> None:
        super().__init__(installed, plane)
        home = installed.base / "kubelet"
        for name in ("plugins", "plugins_registry", "pod-resources"):
            self.run("mkdir", "-p", home / name, f"{_KUBELETS}/{name}")
            self.run("mount", "--bind", home / name, f"{_KUBELETS}/{name}")
        self.run("mkdir", "-p", f"{_KUBELETS}/device-plugins")

    def start_containerd(self) -> None:
        """Start the engine, and return when it answers."""
        super().start_containerd()
        self.run("touch", _ENGINE)
        self.run("mount", "--bind", self._socket, _ENGINE)


class PodCluster(Claiming):
    """kubectl and helm on the cluster."""

    node: PodNode

    def admit(self) -> None:
        """Let the chart's pods run here, and the accounts of all pods be known to them."""
        host, port = urllib.parse.urlsplit(self.node.plane.address).netloc.split(":")
        self(
            "create", "--filename=-", given=_CHANGES.replace("<host>", host).replace("<port>", port)
        )
        for namespace in ("default", chart.NAMESPACE):
            self("create", "configmap", *_MOUNTED, f"--namespace={namespace}")
        words = ("create", "--dry-run=server", "--filename=-", "--output=jsonpath={.spec}")
        where, home = f"--kubeconfig={self.node.plane.kubeconfig()}", self.node.plane.folder

        def is_in_force() -> bool:
            shown = chart.run("kubectl", *words, where, home=home, given=_ASKED).stdout
            return "hostNetwork" in shown

        wait_until(is_in_force, "the chart's pods are changed", PATIENCE)

    def helm(self, *words: str | Path) -> None:
        """Run helm, with the chart's namespace."""
        plane = self.node.plane
        where = (f"--namespace={chart.NAMESPACE}", f"--kubeconfig={plane.kubeconfig()}")
        chart.done("helm", *words, *where, home=plane.folder)

    def chart_pods(self, component: str) -> list[Json]:
        """The chart's pods of a component."""
        selector = f"labelSelector=app.kubernetes.io/component={component}"
        found = self.node.plane.read(f"{pods_path(chart.NAMESPACE)}?{selector}")
        items: list[Json] = found["items"]
        return items

    def await_pod(self, component: str, image: str) -> Json:
        """The only pod of a component, once it is of an image and runs."""

        def is_running() -> bool:
            pods = self.chart_pods(component)
            images = [each["spec"]["containers"][0]["image"] for each in pods]
            return images == [image] and _is_running(pods[0])

        try:
            wait_until(is_running, f"{component} runs of {image}", PATIENCE)
        except AssertionError as error:
            shown = self("describe", "pods", f"--namespace={chart.NAMESPACE}")
            raise AssertionError(f"{error}\n{shown}") from None
        return self.chart_pods(component)[0]

    def await_removal(self) -> None:
        """Return when the chart's pods are gone."""
        rest = lambda: [*self.chart_pods(DRIVER), *self.chart_pods(AGENT)]  # noqa: E731
        wait_until(lambda: not rest(), "the chart's pods are gone", PATIENCE)


def _is_running(pod: Json) -> bool:
    statuses = pod["status"].get("containerStatuses", [])
    return bool(statuses) and "running" in statuses[0]["state"]
