"""What pods of newer Kubernetes can be, on a real kubelet: sidecars, resized, gated, drained."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lab.containers.enclosure import wait_until
from lab.kubernetes.kubectl import CORE, MEM, PATIENCE, Kubectl, asking, decided
from lab.kubernetes.programs import newer

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), newer]

Json = dict[str, Any]
GATE = {"name": "example.com/wait"}


def test_a_sidecar_has_its_part_beside_that_of_the_containers(kubectl: Kubectl) -> None:
    """K8S-4: it goes on while they run, so both count."""
    item = asking("served", {MEM: 6, CORE: 40})
    [helper] = asking("helper", {MEM: 2, CORE: 10})["spec"]["containers"]
    item["spec"]["initContainers"] = [{**helper, "name": "helper", "restartPolicy": "Always"}]
    kubectl.create(item)
    [pod] = kubectl.running("served")
    for container, mib in (("main", 6464), ("helper", 2154)):
        assert list(kubectl.seen(pod, container).values()) == [mib]
        assert kubectl.seen(pod, container) == decided(pod, container)
    kubectl.create(asking("wide", {MEM: 8, CORE: 60}))
    [wide] = kubectl.running("wide")
    assert decided(wide).keys().isdisjoint(decided(pod))  # 7 GiB are left beside the sidecar


def resized(kubectl: Kubectl, name: str, **resources: Json) -> str:
    """Ask for other resources of the running pod; the words of the refusal, if it is one."""
    patch = json.dumps({"spec": {"containers": [{"name": "main", "resources": resources}]}})
    try:
        kubectl("patch", "pod", name, "--subresource=resize", f"--patch={patch}")
    except AssertionError as error:
        return str(error)
    return ""


def test_a_resize_leaves_the_part_of_a_gpu_as_it_is(kubectl: Kubectl) -> None:
    """Kubernetes refuses another part. Other processors come without a new start."""
    part = {MEM: "2", CORE: "30"}
    kubectl.create(asking("grows", {**part, "cpu": "100m"}))
    [pod] = kubectl.running("grows")
    had, started = kubectl.seen(pod), pod["status"]["containerStatuses"][0]["containerID"]
    more = {**part, MEM: "4", "cpu": "100m"}
    assert "only cpu and memory resources are mutable" in resized(
        kubectl, "grows", limits=more, requests=more
    )
    more = {**part, "cpu": "200m"}
    assert resized(kubectl, "grows", limits=more, requests=more) == ""

    def has_more() -> bool:
        [status] = kubectl.pods("grows")["grows"]["status"]["containerStatuses"]
        return bool(status["resources"]["limits"]["cpu"] == "200m")

    wait_until(has_more, "it has more of the processors", PATIENCE)
    [pod] = kubectl.running("grows")
    assert pod["status"]["containerStatuses"][0]["containerID"] == started
    assert kubectl.seen(pod) == had == decided(pod)


def test_a_gated_pod_takes_nothing_until_its_gates_are_gone(kubectl: Kubectl) -> None:
    kubectl.create(
        asking("gated", {MEM: 15, CORE: 100}, schedulingGates=[GATE]),
        asking("one", {MEM: 15, CORE: 100}),
        asking("two", {MEM: 15, CORE: 100}),
    )
    kubectl.running("one", "two")  # both GPUs whole
    assert "nodeName" not in kubectl.pods("gated")["gated"]["spec"]
    kubectl("delete", "pod", "one", "--grace-period=1")  # at 0 it would not wait for the node
    kubectl("patch", "pod", "gated", '--patch={"spec": {"schedulingGates": null}}')
    [pod] = kubectl.running("gated")
    assert kubectl.seen(pod) == decided(pod)


def test_resources_of_the_whole_pod_stand_beside_parts_of_a_gpu(kubectl: Kubectl) -> None:
    """Of the pod there are processors and memory; Kubernetes refuses all others there."""
    whole = {"limits": {"cpu": "500m", "memory": "256Mi"}}
    kubectl.create(asking("pooled", {MEM: 2, CORE: 30}, resources=whole))
    [pod] = kubectl.running("pooled")
    assert list(kubectl.seen(pod).values()) == [2154]
    with pytest.raises(AssertionError, match=f'Unsupported value: "{MEM}"'):
        kubectl.create(asking("refused", {}, resources={"limits": {MEM: "2"}}))


def test_a_node_that_is_drained_deleted_and_added_again_offers_all_it_has(
    kubectl: Kubectl,
) -> None:
    """K8S-12: nothing of the pods that were there is held."""
    node = kubectl.node
    kubectl.create(asking("one", {MEM: 9, CORE: 60}), asking("two", {MEM: 9, CORE: 60}))
    kubectl.running("one", "two")
    others = "--pod-selector=app.kubernetes.io/component!=agent"  # a DaemonSet's pods stay
    kubectl("drain", node.name, "--force", "--ignore-daemonsets", others, "--timeout=60s")
    assert kubectl.pods("one", "two") == {}
    wait_until(lambda: not node.containers(), "what they had is given back", PATIENCE)
    node.stop("kubelet")
    kubectl("delete", "node", node.name)
    node.start_kubelet()
    kubectl.await_gpus()
    kubectl.create(asking("again", {MEM: 15, CORE: 100}), asking("other", {MEM: 15, CORE: 100}))
    for pod in kubectl.running("again", "other"):
        assert kubectl.seen(pod) == decided(pod)
