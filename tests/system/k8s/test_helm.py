"""The chart upgraded and removed by helm while pods use GPUs on a real kubelet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lab.containers.enclosure import wait_until
from lab.kubernetes import chart
from lab.kubernetes.control_plane import ControlPlane, control_plane
from lab.kubernetes.kubectl import CORE, MEM, PATIENCE, Kubectl, asking, decided
from lab.kubernetes.kubelet import kubelet_node
from lab.kubernetes.programs import Release, newer
from lab.kubernetes.scheduler import scheduling
from lab.worlds.guard import guarding

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), newer]


def helm(plane: ControlPlane, *words: str) -> None:
    where = (f"--namespace={chart.NAMESPACE}", f"--kubeconfig={plane.kubeconfig()}")
    chart.done("helm", *words, *where, home=plane.folder)


def running(kubectl: Kubectl) -> list[tuple[str, int, dict[str, int]]]:
    """Of each pod its container, how often that was started anew, and what it sees of GPUs."""

    def of(pod: Any) -> tuple[str, int, dict[str, int]]:
        [status] = pod["status"]["containerStatuses"]
        assert kubectl.seen(pod) == decided(pod)
        return status["containerID"], status["restartCount"], kubectl.seen(pod)

    return [of(pod) for pod in kubectl.running("one", "two")]


def test_k8s_12_pods_do_not_notice_an_upgrade_or_the_end_of_the_chart(
    tmp_path: Path, debian_root: Path, release: Release
) -> None:
    """K8S-12. And where it was upgraded, new ones are placed beside them.

    What runs of the chart are its rights, policies and webhooks. Nobody makes pods of its
    DaemonSet here; so the agent, which loses its rights, is ended by hand as that would be.
    """
    with control_plane(tmp_path, release) as plane:
        helm(plane, "install", "cgpu", str(chart.CHART))
        with kubelet_node(plane, debian_root, "core_mem") as node, scheduling(plane):
            kubectl = Kubectl(node)
            wait_until(lambda: kubectl.offers() == ("2", "30", "200"), "GPUs are offered", PATIENCE)
            with guarding(plane):  # by its address: no Service works here
                kubectl.create(asking("one", {MEM: 6, CORE: 40}))
                kubectl.create(asking("two", {MEM: 11, CORE: 60}))
                had = running(kubectl)
            helm(plane, "upgrade", "cgpu", str(chart.CHART), "--set=scheduler.replicas=3")
            with guarding(plane):
                kubectl.create(asking("late", {MEM: 4, CORE: 30}))
                [late] = kubectl.running("late")
                assert kubectl.seen(late) == decided(late)
            assert running(kubectl) == had
            helm(plane, "uninstall", "cgpu")
            assert running(kubectl) == had
            node.stop("agent", by="TERM")
            assert running(kubectl) == had
