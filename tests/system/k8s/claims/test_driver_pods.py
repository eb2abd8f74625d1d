"""The chart with its own pods on a node: installed, upgraded and removed beside pods with claims.

Driver and agent are pods of their DaemonSets, from cgpu's image, which kubelet, containerd and the
real controllers start and end. They use the node's network, as pods here have none of their own.
DRA-4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab.cluster.dra_node import claim, claiming, claiming_cluster
from lab.cluster.pod_node import CONTROLLERS, DRIVER, PodCluster, PodNode
from lab.containers.enclosure import wait_until
from lab.kubernetes import chart
from lab.kubernetes.kubectl import PATIENCE
from lab.kubernetes.programs import Release, newer
from lab.machine.working import PROGRAM, Working
from lab.products import image

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lab.containers.engines import Docker
    from lab.kubernetes.kubectl import Json

pytestmark = [pytest.mark.system, pytest.mark.timeout(600), newer]

REGISTRY = "docker.io/library"  # of images that name no other
TAG = "next"
NEXT = f"cgpu:{TAG}"
# Of the kubelet, for the pods' mounts: docs/kubernetes.md, "To remove claims".
EMPTY = {
    "/etc/cgpu d ",
    "/run/secrets d ",
    "/run/secrets/kubernetes.io d ",
    "/run/secrets/kubernetes.io/serviceaccount d ",
}


@pytest.fixture(scope="module", name="kubectl")
def _kubectl(
    tmp_path_factory: pytest.TempPathFactory, debian_root: Path, release: Release, docker: Docker
) -> Iterator[PodCluster]:
    images = image.save_two(docker, tmp_path_factory.mktemp("image"))
    folder = tmp_path_factory.mktemp("plane")
    with claiming_cluster(
        folder, release, debian_root, more=CONTROLLERS, kind=PodNode, accounts=True
    ) as found:
        found.node.load(images)
        kubectl = PodCluster(found.node)
        kubectl.admit()
        yield kubectl


def states(kubectl: PodCluster, *names: str) -> list[tuple[str, int, list[int]]]:
    """Of each pod its container, how often that was started anew, and the MiB that it sees."""

    def of(pod: Json) -> tuple[str, int, list[int]]:
        [status] = pod["status"]["containerStatuses"]
        return status["containerID"], status["restartCount"], [*kubectl.seen(pod).values()]

    return [of(pod) for pod in kubectl.running(*names)]


def at_work(kubectl: PodCluster, name: str) -> Working:
    """A program in a pod that takes all memory up to its cap, again and again."""
    [pod] = kubectl.running(name)
    words = ("python3", "-ISc", PROGRAM.read_text())
    command = kubectl.node.executing(pod, "main", *words, called="at-the-cap")
    found = Working(kubectl.node.installed.enclosure.command(*command))
    found.at_work()
    return found


def await_end(kubectl: PodCluster, pod: Json) -> None:
    """Return when a pod is ending, or gone."""
    uid = pod["metadata"]["uid"]

    def is_ending() -> bool:
        found = [each["metadata"] for each in kubectl.chart_pods(DRIVER)]
        return all("deletionTimestamp" in each for each in found if each["uid"] == uid)

    wait_until(is_ending, "the old driver ends", PATIENCE)


def await_warning(kubectl: PodCluster, pod: str) -> None:
    """Return when a pod has an event that says why it waits."""
    chosen = f"--field-selector=involvedObject.name={pod},type=Warning"
    wait_until(lambda: kubectl.get("events", chosen)["items"], f"{pod} waits", PATIENCE)


def test_dra_4_an_upgrade_and_a_removal_of_the_chart_beside_pods_that_have_claims(
    kubectl: PodCluster,
) -> None:
    """With the chart's defaults. And in the end the node is as it was."""
    node = kubectl.node
    before = {*node.list_files()}
    values = (f"--set=agent.driverDir={node.installed.node.driver}",)
    after = (*values, f"--set=image.tag={TAG}", "--set=image.pullPolicy=Never")
    kubectl.helm("install", "cgpu", chart.CHART, *values)
    driver = kubectl.await_pod(DRIVER, image.NAME)
    kubectl.await_devices()
    [old] = node.versions()
    kubectl.create(claim("a", memory="2500Mi", cores="30"), claiming("one", "a"))
    [had] = states(kubectl, "one")
    assert had[1:] == (0, [2500])
    worker = at_work(kubectl, "one")

    # Upgraded. A pod is created before the node has the next driver's image.
    kubectl.helm("upgrade", "cgpu", chart.CHART, *after)
    await_end(kubectl, driver)
    kubectl.create(claim("b", memory="1Gi"), claiming("late", "b"))
    await_warning(kubectl, "late")
    assert states(kubectl, "one") == [had]
    node.run(*node.ctr(), "images", "tag", *(f"{REGISTRY}/{each}" for each in (image.NEXT, NEXT)))
    [late] = states(kubectl, "late")
    assert late[1:] == (0, [1024])
    assert states(kubectl, "one") == [had]
    kubectl.await_pod(DRIVER, NEXT)
    assert old in node.versions()
    [newest] = {*node.versions()} - {old}
    hooks = {name: str(node.specification(pod, "main")["hooks"])
             for name, pod in kubectl.pods("one", "late").items()}  # fmt: skip
    assert f"/{old}/" in hooks["one"]
    assert f"/{newest}/" in hooks["late"]
    worker.at_work()

    # Removed beside them: they go on, and no other pod starts with a claim.
    kubectl.helm("uninstall", "cgpu")
    kubectl.await_removal()
    kubectl.create(claim("c", memory="1Gi"), claiming("none", "c"))
    kubectl.await_event("none", "gpu.cgpu")
    assert states(kubectl, "one", "late") == [had, late]
    assert kubectl.pods("none")["none"]["status"]["phase"] == "Pending"
    worker.at_work()

    # Another driver takes back what they had, and then leaves nothing.
    kubectl.helm("install", "cgpu", chart.CHART, *after)
    kubectl.running("none")
    assert states(kubectl, "one", "late") == [had, late]
    worker.at_work()
    assert worker.end() == 0
    kubectl("delete", "pods", "--all", "--grace-period=1", "--wait=true", "--timeout=120s")
    wait_until(lambda: not node.containers(), "nothing is held", PATIENCE)
    assert node.cdi_files() == []
    kubectl.helm("uninstall", "cgpu")
    kubectl.await_removal()
    assert {*node.list_files()} ^ before <= EMPTY
    assert node.list_programs() == []
