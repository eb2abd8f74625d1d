"""Pods of the published documents, placed by the cluster's own scheduler as claims. DRA-6."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from lab.cluster.dra_node import CONVERTING, ENABLED, Claiming, claiming_cluster
from lab.containers.enclosure import wait_until
from lab.kubernetes.control_plane import GUARD
from lab.kubernetes.kubectl import CORE, COUNT, MEM, PATIENCE, asking
from lab.kubernetes.kubelet import NODE
from lab.kubernetes.objects import binding, pod_path
from lab.kubernetes.programs import Release, newer
from lab.machine.cri import IMAGE
from lab.worlds.guard import NAME, converting

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), newer]

Json = dict[str, Any]
CONTROLLERS = ("deployment-controller", "replicaset-controller", "resourcequota-controller")
KEPT = 5.0  # seconds for which a template stays here
PUBLISHED = """
apiVersion: apps/v1
kind: Deployment
metadata:
  name: gpu-share-sample
  labels: {app: gpu-share-sample}
spec:
  replicas: 2
  selector:
    matchLabels: {app: gpu-share-sample}
  template:
    metadata:
      labels: {app: gpu-share-sample}
    spec:
      schedulerName: ack-co-scheduler
      containers:
      - name: main
        image: IMAGE
        resources:
          limits:
            aliyun.com/gpu-mem: 2
            aliyun.com/gpu-core.percentage: 30
"""
# What a test's node wants: it has no network, and its image from nowhere.
HERE = {"hostNetwork": True, "terminationGracePeriodSeconds": 0}
TEMPLATE = "cgpu-mem-2048-core-30"
LIMITED = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "gpus"},
    "spec": {
        "hard": {
            "requests.aliyun.com/gpu-mem": "1",
            "gpu.cgpu.deviceclass.resource.k8s.io/devices": "1",
        }
    },
}


@pytest.fixture(scope="module", name="cluster")
def _cluster(
    tmp_path_factory: pytest.TempPathFactory, debian_root: Path, release: Release
) -> Iterator[Claiming]:
    """The cluster's own scheduler, a node whose GPUs are claimed, and a guard that converts."""
    folder = tmp_path_factory.mktemp("plane")
    with claiming_cluster(folder, release, debian_root, more=CONTROLLERS) as kubectl:
        node, plane = kubectl.node, kubectl.node.plane
        policies = [each for each in plane.chart() if "AdmissionPolicy" in each["kind"]]
        kubectl("apply", "--filename=-", given=yaml.safe_dump_all(policies))
        kubectl.install()
        node.start_driver()
        kubectl.await_devices()
        with converting(plane, KEPT):
            yield kubectl


@pytest.fixture(name="kubectl")
def _kubectl(cluster: Claiming) -> Iterator[Claiming]:
    yield cluster
    cluster("delete", "resourcequotas", "--all")
    cluster("delete", "deployments,replicasets", "--all")
    cluster.clear()
    cluster("delete", "resourceclaims", "--all", "--wait=true", "--timeout=60s")


def templates(kubectl: Claiming) -> list[str]:
    return [each["metadata"]["name"] for each in kubectl.get("resourceclaimtemplates")["items"]]


def await_no_templates(kubectl: Claiming) -> None:
    wait_until(lambda: templates(kubectl) == [], "no template is left", PATIENCE)


def test_dra_6_a_published_deployment_runs_by_the_clusters_own_scheduler(
    kubectl: Claiming,
) -> None:
    [item] = yaml.safe_load_all(PUBLISHED.replace("IMAGE", IMAGE))
    spec = item["spec"]["template"]["spec"]
    spec |= HERE
    spec["containers"][0]["imagePullPolicy"] = "Never"
    kubectl.create(item)
    listed: list[Json] = []

    def are_made() -> bool:
        listed[:] = kubectl.get("pods", "--selector=app=gpu-share-sample")["items"]
        return len(listed) == 2

    wait_until(are_made, "both pods are made", PATIENCE)
    for pod in kubectl.running(*(each["metadata"]["name"] for each in listed)):
        assert [*kubectl.seen(pod).values()] == [2048]
        assert pod["spec"]["schedulerName"] == "default-scheduler"
        assert "aliyun.com" not in str(pod["spec"])
    shares = kubectl.node.shares()
    assert [(each["kind"], each["weight"], each["policy"]) for each in shares] == [
        ("claim", 6, 6)
    ] * 2
    assert templates(kubectl) == [TEMPLATE]
    kubectl("scale", "deployments/gpu-share-sample", "--replicas=0")
    await_no_templates(kubectl)


def test_dra_6_each_container_has_what_it_asks_for_on_each_gpu(kubectl: Claiming) -> None:
    """The first one runs before the others, and has the claim of the one that asks for as much."""
    item = asking("one", {MEM: "4"}, {MEM: "8"}, labels={COUNT: "2"})
    init = asking("", {MEM: "4"})["spec"]["containers"][0]
    words = ["sh", "-c", "test $(nvidia-smi | grep -c ' 2048MiB') = 2"]
    item["spec"]["initContainers"] = [{**init, "name": "first", "command": words}]
    kubectl.create(item)
    [pod] = kubectl.running("one")
    assert [*kubectl.seen(pod).values()] == [2048, 2048]
    assert [*kubectl.seen(pod, "side").values()] == [4096, 4096]
    assert len(kubectl.node.shares()) == 2


def test_dra_6_a_whole_gpu_is_nobody_elses(kubectl: Claiming) -> None:
    kubectl.create(asking("one", {"aliyun.com/gpu": "1"}), asking("two", {MEM: "2"}))
    one, two = kubectl.running("one", "two")
    assert [*kubectl.seen(one).values()] == [16160]
    assert [*kubectl.seen(two).values()] == [2048]
    assert kubectl.seen(one).keys().isdisjoint(kubectl.seen(two))


def test_dra_6_a_dry_run_is_answered_alike_and_makes_nothing(kubectl: Claiming) -> None:
    await_no_templates(kubectl)
    words = ("create", "--dry-run=server", "--output=yaml", "--filename=-")
    given = yaml.safe_dump(asking("one", {MEM: "2", CORE: "30"}))
    [source] = yaml.safe_load(kubectl(*words, given=given))["spec"]["resourceClaims"]
    assert source["resourceClaimTemplateName"] == TEMPLATE
    kubectl.create(asking("two", {MEM: "3"}))  # what is made for it comes after
    kubectl.running("two")
    assert templates(kubectl) == ["cgpu-mem-3072"]


@pytest.mark.parametrize(
    ("item", "sentence"),
    [
        (
            asking("one", {MEM: "2", CORE: "33"}),
            "container main: aliyun.com/gpu-core.percentage=33: expected a multiple of 5 from 5",
        ),
        (
            asking("one", {MEM: "2"}, nodeName="gpu-a"),
            "nodeName=gpu-a: expected none for a pod that asks for",
        ),
        (
            asking("one", {MEM: "2"}, labels={"aliyun.com/gpu-counts": "2"}),
            "did you mean the pod's label aliyun.com/gpu-count",
        ),
    ],
)
def test_dra_6_a_wrong_request_is_refused_by_its_sentence(
    kubectl: Claiming, item: Json, sentence: str
) -> None:
    with pytest.raises(AssertionError) as refused:
        kubectl.create(item)
    assert sentence in str(refused.value)


def test_dra_6_a_quota_counts_devices_of_claims_and_no_memory(kubectl: Claiming) -> None:
    kubectl.create(LIMITED)
    hard = lambda: kubectl.get("resourcequota", "gpus")["status"].get("hard")  # noqa: E731
    wait_until(hard, "the quota holds", PATIENCE)
    kubectl.create(asking("one", {MEM: "2"}))
    kubectl.running("one")
    kubectl.create(asking("two", {MEM: "2"}))
    events = "--field-selector=involvedObject.name=two,reason=FailedResourceClaimCreation"

    def says() -> str:
        return " ".join(each["message"] for each in kubectl.get("events", events)["items"])

    wait_until(lambda: "exceeded quota: gpus" in says(), "the second waits", PATIENCE)
    used = kubectl.get("resourcequota", "gpus")["status"]["used"]
    assert used == {
        "requests.aliyun.com/gpu-mem": "0",
        "gpu.cgpu.deviceclass.resource.k8s.io/devices": "1",
    }
    kubectl("delete", "resourcequotas", "gpus")
    kubectl.running("two")


def test_dra_6_the_chart_grants_the_guard_what_it_calls_and_no_more(kubectl: Claiming) -> None:
    """What the guard of this file has called; its templates go, too."""
    kubectl.create(asking("one", {MEM: "2"}), asking("bare", {}, schedulerName="none"))
    kubectl.running("one")
    # A Binding by others than the cluster's scheduler is judged by what the pod asks for.
    words = ("create", "--raw", pod_path("bare", "binding"), "--filename=-")
    kubectl(*words, given=json.dumps(binding("bare", NODE)))
    kubectl.clear()
    await_no_templates(kubectl)
    plane = kubectl.node.plane
    anywhere = {"pods", "resourceclaimtemplates"}
    calls = {each._replace(namespace="") if each.resource in anywhere else each
             for each in plane.calls(GUARD)}  # fmt: skip
    assert calls == plane.granted(NAME, ENABLED, CONVERTING)
