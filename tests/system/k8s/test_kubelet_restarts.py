"""Pods on a real kubelet while it, the agent or the whole machine are down (K8S-12)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from lab.containers.enclosure import wait_until
from lab.kubernetes.kubectl import CORE, COUNT, MEM, PATIENCE, Kubectl, asking, decided

if TYPE_CHECKING:
    from lab.kubernetes.kubectl import Json

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

RESTARTS = int(os.environ.get("CGPU_KUBELET_RESTARTS", "4"))
GIB = (7, 6, 5, 4, 3, 2)


def bound(kubectl: Kubectl, *names: str) -> None:
    """Wait until these pods are on a node."""

    def are_bound() -> bool:
        found = kubectl.pods(*names).values()
        return len(found) == len(names) and all("nodeName" in pod["spec"] for pod in found)

    wait_until(are_bound, f"{names} are bound", PATIENCE)


def identities(pods: list[Json]) -> dict[str, str]:
    """The container of each pod."""
    return {
        pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["containerID"]
        for pod in pods
    }


def test_k8s_11_pods_bound_while_kubelet_and_agent_are_down_get_what_was_decided(
    kubectl: Kubectl,
) -> None:
    """K8S-11."""
    kubectl.node.stop("kubelet", "agent")
    names = [f"p{size}" for size in GIB]
    kubectl.create(*(asking(f"p{size}", {MEM: size, CORE: 5 * size}) for size in GIB))
    bound(kubectl, *names)
    kubectl.node.start_kubelet()
    pods = kubectl.running(*names)
    assert [kubectl.seen(pod) for pod in pods] == [decided(pod) for pod in pods]
    assert len({uuid for pod in pods for uuid in decided(pod)}) == 2
    kubectl.node.start_agent()


@pytest.mark.timeout(300 + 30 * RESTARTS)
def test_k8s_12_no_pod_fails_or_starts_anew_when_the_kubelet_is_killed(kubectl: Kubectl) -> None:
    """Each time the kubelet starts a pod that came meanwhile, after it let in the older ones."""
    kubectl.create(
        asking("one", {MEM: 15, CORE: 95}),
        asking("two", {MEM: 6, CORE: 45}, {MEM: 6, CORE: 45}),
    )
    before = identities(kubectl.running("one", "two"))
    for number in range(RESTARTS):
        kubectl.node.stop("kubelet")
        kubectl.create(asking(f"late-{number}", {}))
        kubectl.node.start_kubelet()
        kubectl.running(f"late-{number}")
        pods = kubectl.pods("one", "two").values()
        assert [pod["status"]["phase"] for pod in pods] == ["Running", "Running"], number
        assert identities([*pods]) == before, number


def test_k8s_12_pods_that_come_back_after_a_reboot_have_what_they_had(kubectl: Kubectl) -> None:
    kubectl.create(
        asking("one", {MEM: 10, CORE: 60}, restartPolicy="Always"),
        asking("two", {MEM: 6, CORE: 30}, {MEM: 2, CORE: 10}, restartPolicy="Always"),
        asking("wide", {MEM: 8, CORE: 20}, labels={COUNT: "2"}, restartPolicy="Always"),
    )
    pods = kubectl.running("one", "two", "wide")
    before, had = identities(pods), [decided(pod) for pod in pods]
    shares = sorted(share["weight"] for share in kubectl.node.shares())
    kubectl.node.reboot()

    def are_new() -> bool:
        now = identities(kubectl.running("one", "two", "wide"))
        return all(now[name] != before[name] for name in before)

    wait_until(are_new, "the pods' containers are new", PATIENCE)
    pods = kubectl.running("one", "two", "wide")
    assert [kubectl.seen(pod) for pod in pods] == had
    assert kubectl.seen(pods[1], "side") == decided(pods[1], "side")
    assert sorted(share["weight"] for share in kubectl.node.shares()) == shares
    # Pods need no agent to come back; until it has registered, the kubelet has no devices of it.
    kubectl.await_gpus()


def test_k8s_10_the_static_cpu_policy_takes_no_gpu_away(kubectl: Kubectl) -> None:
    """K8S-10: the processors of running containers change; their GPUs do not."""
    kubectl.create(asking("pool", {MEM: 2, CORE: 10}))
    [pool] = kubectl.running("pool")
    before, devices = processors(kubectl, pool), granted(kubectl, pool)
    kubectl.create(asking("own", {MEM: 2, CORE: 10, "cpu": "1", "memory": "64Mi"}))
    [own] = kubectl.running("own")
    [processor] = processors(kubectl, own)
    wait_until(
        lambda: processors(kubectl, pool) == before - {processor}, "it is taken away", PATIENCE
    )
    assert granted(kubectl, pool) == devices
    for pod in (pool, own):
        assert kubectl.seen(pod) == decided(pod)


def processors(kubectl: Kubectl, pod: Json) -> set[int]:
    """The processors that a pod may use."""
    lines = kubectl.execute(pod, "main", "cat", "/proc/1/status").splitlines()
    [listed] = [line.split()[1] for line in lines if line.startswith("Cpus_allowed_list")]
    found: set[int] = set()
    for part in listed.split(","):
        low, _, high = part.partition("-")
        found |= set(range(int(low), int(high or low) + 1))
    return found


def granted(kubectl: Kubectl, pod: Json) -> str:
    """The devices that a pod may open, as its control group of version 1 lists them.

    Version 2 has no such list. There it is empty, and what the pod sees has to do.
    """
    listed = "cat /sys/fs/cgroup/devices/devices.list 2>/dev/null || true"
    return kubectl.execute(pod, "main", "sh", "-c", listed)
