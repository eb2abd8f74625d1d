"""Pods on a real kubelet with containerd, cgpu and simulated GPUs, placed by a scheduler."""

from __future__ import annotations

import base64
import json
from contextlib import ExitStack

import pytest
import yaml

from cgpu_k8s.names import SCHEDULE
from lab.containers.enclosure import wait_until
from lab.kubernetes import chart
from lab.kubernetes.control_plane import AGENT, controllers
from lab.kubernetes.kubectl import CORE, COUNT, MEM, PATIENCE, Kubectl, asking, decided
from lab.kubernetes.kubelet import STATE
from lab.kubernetes.objects import binding, pod_path

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

WHOLE = "nvidia.com/gpu"
ACCOUNT, AUTHORITY = "account", "kube-root-ca.crt"  # the chart's volume, and what it takes
TABLE = """\
NAME   IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)
gpu-a  unknown    2/15                   0/15                   2/30
"""


def test_k8s_2_the_documents_job_has_its_part_of_a_gpu(kubectl: Kubectl) -> None:
    """K8S-1, K8S-2, K8S-7: ``kubectl inspect cgpu`` shows it."""
    kubectl.create(asking("cuda-sample", {MEM: 2, CORE: 30}))
    [pod] = kubectl.running("cuda-sample")
    assert list(kubectl.seen(pod).values()) == [2154]
    assert kubectl.seen(pod) == decided(pod)
    [share] = kubectl.node.shares()
    assert (share["weight"], share["policy"]) == (6, 3)
    assert kubectl.inspect().startswith(TABLE)


def test_k8s_4_containers_of_a_pod_have_a_part_each_of_one_gpu_or_of_two(kubectl: Kubectl) -> None:
    """K8S-4."""
    kubectl.create(
        asking("two", {MEM: 6, CORE: 40}, {MEM: 3, CORE: 20}),
        asking("wide", {MEM: 8, CORE: 60}, labels={COUNT: "2"}),
    )
    two, wide = kubectl.running("two", "wide")
    for pod, container, sizes in (
        (two, "main", [6464]),
        (two, "side", [3232]),
        (wide, "main", [4309, 4309]),
    ):
        assert list(kubectl.seen(pod, container).values()) == sizes
        assert kubectl.seen(pod, container) == decided(pod, container)
    assert decided(two).keys() == decided(two, "side").keys()
    assert sorted(share["weight"] for share in kubectl.node.shares()) == [4, 6, 8]


def test_k8s_15_a_pod_that_nobody_decided_on_is_refused_and_its_event_says_why(
    kubectl: Kubectl,
) -> None:
    """K8S-15. Where policies judge pods, one comes to a node past the scheduler by a Binding."""
    forced = asking("forced", {MEM: 2, CORE: 30}, nodeName=kubectl.node.name)
    if kubectl.node.plane.release.has_policies:
        with pytest.raises(AssertionError, match="expected none for a pod that asks"):
            kubectl.create(forced)
        kubectl.create(asking("forced", {MEM: 16, CORE: 30}))  # which the scheduler leaves
        bound = json.dumps(binding("forced", kubectl.node.name, {}))
        kubectl("create", f"--raw={pod_path('forced', 'binding')}", "--filename=-", given=bound)
    else:
        kubectl.create(forced)
    events = "--field-selector=involvedObject.name=forced,type=Warning,reason!=FailedScheduling"

    def messages() -> list[str]:
        return [each["message"] for each in kubectl.get("events", events)["items"]]

    wait_until(messages, "the kubelet says why the pod does not start", PATIENCE)
    sentence = "came without its pod's annotation cgpu/allocation: expected a schedulerName"
    assert sentence in messages()[0]
    assert kubectl.node.shares() == []


@pytest.mark.parametrize(
    ("name", "limits", "reason"),
    [
        (
            "large",
            {MEM: 16, CORE: 5},
            "no GPU has 16 GiB of aliyun.com/gpu-mem and 5 percent of its time in all",
        ),
        ("time", {CORE: 30}, f"container main: {CORE} without {MEM}: expected both in its limits"),
    ],
)
def test_k8s_2_the_event_of_a_pod_that_fits_nowhere_says_what_inspect_says(
    name: str, limits: dict[str, int], reason: str, kubectl: Kubectl
) -> None:
    """K8S-7: word for word, though the scheduler takes what it is given for a format."""
    if MEM not in limits and kubectl.node.plane.release.has_policies:
        with pytest.raises(AssertionError, match=f"{CORE} without {MEM}: expected both"):
            kubectl.create(asking(name, limits))
        return
    kubectl.create(asking(name, limits))
    events = f"--field-selector=involvedObject.name={name},reason=FailedScheduling"
    wait_until(lambda: kubectl.get("events", events)["items"], "the pod waits", PATIENCE)
    messages = {each["message"] for each in kubectl.get("events", events)["items"]}
    # Newer schedulers go on with what they found of preemption.
    assert {each.partition(" no new claims")[0] for each in messages} == {
        f"0/1 nodes are available: 1 {reason}."
    }
    assert reason in kubectl.inspect("--why", name)


def test_k8s_8_who_has_whole_gpus_is_known_on_the_node(kubectl: Kubectl) -> None:
    """K8S-8: from the real kubelet, beside a pod with a part of one."""
    kubectl.create(asking("part", {MEM: 2, CORE: 30}))
    [part] = kubectl.running("part")
    node = kubectl.node
    path, uuid = f"{STATE}/exclusive.json", "GPU-of-nvidia"
    read = f"cat {path} 2>/dev/null || true"
    node.start_plugin([uuid])
    try:
        wait_until(lambda: kubectl.published(WHOLE) == "1", "the plugin's GPU is there", PATIENCE)
        kubectl.create(asking("whole", {WHOLE: 1}, nodeName=node.name))
        kubectl.running("whole")
        wait_until(lambda: node.run("sh", "-c", read), "the kubelet says who has it", PATIENCE)
        [found] = json.loads(node.run("cat", path))["containers"]
        assert found == {
            "namespace": "default",
            "pod": "whole",
            "container": "main",
            "devices": [uuid],
        }
        kubectl("delete", "pod", "whole", "--grace-period=0", "--force")
        wait_until(lambda: not node.run("sh", "-c", read), "nobody has it any more", PATIENCE)
        assert [share["name"] for share in node.shares()] == ["default/part/main"]
        assert list(kubectl.seen(part).values()) == [2154]
    finally:
        node.stop("plugin")
    wait_until(lambda: kubectl.published(WHOLE) == "0", "the kubelet takes it back", PATIENCE)


def test_k8s_15_the_chart_grants_the_agent_what_it_calls_and_no_more(kubectl: Kubectl) -> None:
    """K8S-15: what the agent of this file has called, and the event about a label held back."""
    kubectl.create(asking("part", {MEM: 2, CORE: 30}))
    kubectl.running("part")
    label = ("label", "node", kubectl.node.name, "--overwrite")
    kubectl(*label, f"{SCHEDULE}=cgpu")
    try:
        events = "--field-selector=reason=GpuModeHeld"
        wait_until(lambda: kubectl.get("events", events)["items"], "it says so", PATIENCE)
    finally:
        kubectl(*label, f"{SCHEDULE}=core_mem")
    plane = kubectl.node.plane
    assert plane.calls(AGENT) == plane.granted("cgpu-agent")


def test_k8s_16_the_agents_pod_gets_a_token_that_is_bound_to_it(kubectl: Kubectl) -> None:
    """K8S-16: by the chart's volume, beside what kube-controller-manager publishes."""
    plane, where = kubectl.node.plane, f"--namespace={chart.NAMESPACE}"
    trusted = plane.authority.folder / "ca.crt"
    agent = chart.one(plane.chart(), "DaemonSet", "cgpu-agent")["spec"]["template"]["spec"]
    [mount] = [each for each in agent["containers"][0]["volumeMounts"] if each["name"] == ACCOUNT]
    item = asking("bound", {}, nodeName=kubectl.node.name)
    item["spec"] |= {key: agent[key] for key in agent if "erviceAccount" in key}
    item["spec"]["volumes"] = [each for each in agent["volumes"] if each["name"] == ACCOUNT]
    item["spec"]["containers"][0]["volumeMounts"] = [mount]
    path = pod_path("bound", namespace=chart.NAMESPACE)
    try:
        with ExitStack() as published:
            if plane.release.has_controllers:
                published.enter_context(controllers(plane, "root-ca-cert-publisher"))
            else:
                kubectl("create", "configmap", AUTHORITY, f"--from-file={trusted}", where)
            kubectl("create", "--filename=-", where, given=yaml.safe_dump(item))
            wait_until(
                lambda: plane.read(path)["status"]["phase"] == "Running", "it runs", PATIENCE
            )
        pod = plane.read(path)
        token, authority, namespace = (
            kubectl.execute(pod, "main", "cat", f"{mount['mountPath']}/{file}")
            for file in ("token", "ca.crt", "namespace")
        )
    finally:
        words = ("--grace-period=0", "--force", "--ignore-not-found", where)
        kubectl("delete", "pod/bound", f"configmap/{AUTHORITY}", *words)
    claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))["kubernetes.io"]
    assert claims["pod"] == {"name": "bound", "uid": pod["metadata"]["uid"]}
    of = kubectl.node.name if plane.release.has_policies else None
    assert claims.get("node", {}).get("name") == of
    assert (authority, namespace) == (trusted.read_text(), chart.NAMESPACE)
