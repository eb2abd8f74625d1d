"""The chart upgraded and removed by helm while pods use GPUs on a real kubelet."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from lab.containers.enclosure import wait_until
from lab.kubernetes import chart
from lab.kubernetes.control_plane import ControlPlane, control_plane, controllers
from lab.kubernetes.kubectl import CORE, MEM, PATIENCE, Kubectl, asking, decided
from lab.kubernetes.kubelet import NODE, kubelet_node
from lab.kubernetes.objects import node as bare_node
from lab.kubernetes.objects import pods_path
from lab.kubernetes.programs import Release, newer
from lab.kubernetes.scheduler import of_the_cluster, scheduling
from lab.machine.working import PROGRAM, Working
from lab.worlds.guard import guarding

if TYPE_CHECKING:
    from pathlib import Path

    from lab.kubernetes.kubelet import KubeletNode

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), newer]

Json = dict[str, Any]
AGENTS = f"{pods_path(chart.NAMESPACE)}?labelSelector=app.kubernetes.io/component=agent"
SETTING = "/etc/cgpu/kubernetes.json"
# What restarts the agents with another argument, beside what changes no pod of theirs.
CHANGES = ("scheduler.replicas=3", "image.tag=next", "agent.passThrough={monitoring}")


def helm(plane: ControlPlane, *words: str) -> None:
    where = (f"--namespace={chart.NAMESPACE}", f"--kubeconfig={plane.kubeconfig()}")
    chart.done("helm", *words, *where, home=plane.folder)


def agents_pod(plane: ControlPlane, before: str = "") -> Json:
    """The only pod of the chart's DaemonSet, once it is on its node and has another UID."""

    def found() -> list[Json]:
        pods = plane.read(AGENTS)["items"]
        there = [each for each in pods if each["spec"].get("nodeName") == NODE]
        return [each for each in there if len(pods) == 1 and each["metadata"]["uid"] != before]

    wait_until(found, f"one pod of the DaemonSet is on {NODE}", PATIENCE)
    [pod] = found()
    return pod


def running(kubectl: Kubectl) -> list[tuple[str, int, dict[str, int]]]:
    """Of each pod its container, how often that was started anew, and what it sees of GPUs."""

    def of(pod: Any) -> tuple[str, int, dict[str, int]]:
        [status] = pod["status"]["containerStatuses"]
        assert kubectl.seen(pod) == decided(pod)
        return status["containerID"], status["restartCount"], kubectl.seen(pod)

    return [of(pod) for pod in kubectl.running("one", "two")]


def at_work(kubectl: Kubectl, pod: Json) -> Working:
    """A program in a pod that takes all memory up to its cap, again and again."""
    words = ("python3", "-ISc", PROGRAM.read_text())
    command = kubectl.node.executing(pod, "main", *words, called="at-the-cap")
    return Working(kubectl.node.installed.enclosure.command(*command))


def passed_through(node: KubeletNode) -> Any:
    """The namespaces that the node passes through, as its agent has written them."""
    return json.loads(node.installed.read(SETTING)).get("pass_through")


def test_k8s_12_pods_do_not_notice_an_upgrade_or_the_end_of_the_chart(
    tmp_path: Path, debian_root: Path, release: Release
) -> None:
    """K8S-12. And where it was upgraded, new ones are placed beside them.

    The real controllers make the agent's pod, replace it in the upgrade and remove it. The node has
    no network for pods, so the agent itself is started and ended by hand, with the arguments and
    the account of its pod. Of the rest of the chart run its rights, policies and webhooks.
    """
    with control_plane(tmp_path, release) as plane, ExitStack() as programs:
        programs.enter_context(controllers(plane, "daemonset", "garbagecollector"))
        programs.enter_context(of_the_cluster(plane))
        plane.create("/api/v1/nodes", bare_node("without-the-label", pods="110"))
        helm(plane, "install", "cgpu", str(chart.CHART))
        node = programs.enter_context(kubelet_node(plane, debian_root, "core_mem", agent=False))
        programs.enter_context(scheduling(plane))
        agent = agents_pod(plane)
        node.start_agent(agent)
        kubectl = Kubectl(node)
        kubectl.await_gpus()
        with guarding(plane):  # by its address: no Service works here
            kubectl.create(asking("one", {MEM: 6, CORE: 40}))
            kubectl.create(asking("two", {MEM: 11, CORE: 60}))
            had = running(kubectl)
        worker = at_work(kubectl, kubectl.pods("one")["one"])
        worker.at_work()

        helm(plane, "upgrade", "cgpu", str(chart.CHART), *(f"--set={each}" for each in CHANGES))
        next_agent = agents_pod(plane, agent["metadata"]["uid"])
        assert next_agent["spec"]["containers"][0]["image"] == "cgpu:next"
        node.stop("agent", by="TERM")
        assert running(kubectl) == had
        node.start_agent(next_agent)
        wait_until(lambda: passed_through(node) == ["monitoring"], "it has its argument", PATIENCE)
        with guarding(plane):
            kubectl.create(asking("late", {MEM: 4, CORE: 30}))
            [late] = kubectl.running("late")
            assert kubectl.seen(late) == decided(late)
        assert running(kubectl) == had
        worker.at_work()

        helm(plane, "uninstall", "cgpu")
        assert running(kubectl) == had
        wait_until(lambda: not plane.read(AGENTS)["items"], "the agent's pod is gone", PATIENCE)
        node.stop("agent", by="TERM")
        assert running(kubectl) == had
        worker.at_work()
        assert worker.end() == 0
