"""K8S-7, ``--why POD``: the one sentence that helps, for each reason that a pod can have."""

from __future__ import annotations

from typing import Any

import pytest

from cgpu_k8s.inspect.cluster import read_gpu_pod, read_node_facts
from cgpu_k8s.inspect.why import explain_maker, explain_pod
from lab.kubernetes.manifests import (
    CONTROLLERS,
    V100,
    bound,
    controller,
    decided,
    gpus,
    node,
    pod,
    published_node,
)

pytestmark = pytest.mark.unit

A, B = gpus("a", V100, V100), gpus("b", V100)
A0, A1, B0 = *A, *B
CLUSTER = [node("gpu-a", A), node("gpu-b", B), published_node("cpu", 0, 0)]


def reason(
    given: Any, nodes: list[Any] = CLUSTER, pods: list[Any] | None = None, events: Any = ()
) -> str:
    """The sentence, without the pod's name at its beginning."""
    gpu_pods = [gpu_pod for gpu_pod in map(read_gpu_pod, pods or []) if gpu_pod]
    machines = [read_node_facts(each) for each in nodes]
    sentence = explain_pod(given, read_gpu_pod(given), machines, gpu_pods, events)
    start = f"pod default/{given['metadata']['name']} "
    assert sentence.startswith(start)
    assert "\n" not in sentence
    return sentence.removeprefix(start)


def fill(name: str, units: int, to: str, uuid: str) -> Any:
    return decided(pod(name, units), to, A | B, uuid)


def test_no_gpu_has_enough_left_on_any_node() -> None:
    pods = [fill("x", 10, "gpu-a", A0), fill("y", 11, "gpu-a", A1), fill("z", 9, "gpu-b", B0)]
    assert reason(pod("p", 7), pods=pods) == (
        "waits: on 2 of 2 nodes that share their GPUs (gpu-a, gpu-b), no GPU has 7 GiB of"
        " aliyun.com/gpu-mem free"
    )


def test_what_can_change_by_itself_goes_before_what_cannot() -> None:
    nodes = [*(node(f"small-{n}", gpus(f"s{n}", 8192)) for n in range(3)), node("gpu-b", B)]
    assert reason(pod("p", 9), nodes, [fill("z", 9, "gpu-b", B0)]) == (
        "waits: on 1 of 4 nodes that share their GPUs (gpu-b), no GPU has 9 GiB of"
        " aliyun.com/gpu-mem free"
    )
    assert reason(pod("p", 16), nodes) == (
        "waits: on 4 of 4 nodes that share their GPUs (gpu-b, small-0, small-1 and 1 more), no GPU"
        " has 16 GiB of aliyun.com/gpu-mem in all"
    )


def test_pods_that_have_ended_take_no_room_and_those_being_deleted_do() -> None:
    ended, leaving = fill("x", 15, "gpu-b", B0), fill("x", 15, "gpu-b", B0)
    ended["status"]["phase"] = "Failed"
    leaving["metadata"]["deletionTimestamp"] = "2026-11-23T00:00:00Z"
    assert "there is room on the GPUs of gpu-b" in reason(pod("p", 1), [node("gpu-b", B)], [ended])
    assert "no GPU has 1 GiB" in reason(pod("p", 1), [node("gpu-b", B)], [leaving])


def test_cos_7_who_waits_for_a_group_is_shown_how_many_of_it_are_there() -> None:
    """COS-7."""
    members = [pod(f"p{n}", 1) for n in range(2)]
    for each in members:
        each["metadata"]["labels"] |= {"gpu-topology": "job", "gpu-topology-replica": "3"}
    pods = [*members, pod("other", 1)]
    assert reason(members[0], pods=pods) == (
        "waits for its group job: 2 of its 3 pods are there, and all or none get room"
    )
    third = {**members[0], "metadata": {**members[0]["metadata"], "name": "p3", "uid": "u3"}}
    message = "group job: its nodes have room for 2 of its 3 pods that wait"
    warning = {"type": "Warning", "reason": "FailedScheduling", "message": message}
    assert reason(third, pods=[*pods, third], events=[warning]) == (
        f"waits with its group job: FailedScheduling: {message}"
    )


def test_one_node_of_the_wrong_mode_or_with_a_wrong_label() -> None:
    assert reason(pod("p", 1, 30), [node("gpu-b", B)]) == (
        "waits: on gpu-b, the only node that shares its GPUs, ack.node.gpu.schedule=cgpu: the node"
        " takes no pod with aliyun.com/gpu-core.percentage"
    )
    typo = node("gpu-b", B)
    typo["metadata"]["labels"]["ack.node.gpu.schedule"] = "cgup"
    assert reason(pod("p", 1), [typo]).endswith("perhaps cgpu")


def test_two_gpus_are_asked_for_and_nodes_have_one() -> None:
    assert reason(pod("p", 2, count=2), [node("gpu-b", B)]).endswith(
        "2 GPUs are asked for, 1 are here"
    )


def test_no_node_shares_its_gpus() -> None:
    assert reason(pod("p", 1), [published_node("cpu", 0, 0)]) == (
        "waits: no node of the cluster shares its GPUs (label ack.node.gpu.schedule=cgpu)"
    )


def test_there_is_room_and_the_scheduler_says_what_else_is_missing() -> None:
    given = pod("p", 7)
    given["status"]["conditions"] = [
        {"type": "Ready", "status": "False", "reason": "other"},
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/3 nodes are available:\n 3 Insufficient cpu.",
        },
    ]
    assert reason(given) == (
        "waits: there is room on the GPUs of gpu-a, gpu-b, and its scheduler says: Unschedulable:"
        " 0/3 nodes are available: 3 Insufficient cpu."
    )


def test_no_scheduler_has_answered() -> None:
    given = pod("p", 7)
    assert reason(given).endswith(
        "its scheduler cgpu-scheduler has not answered yet: is it running?"
    )
    warning = {
        "type": "Warning",
        "reason": "FailedScheduling",
        "message": "no",
        "lastTimestamp": "2",
    }
    older = {**warning, "message": "older", "lastTimestamp": "1"}
    normal = {**warning, "type": "Normal", "message": "newer", "lastTimestamp": "3"}
    assert reason(given, events=[older, warning, normal]).endswith("says: FailedScheduling: no")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"status": {"phase": "Succeeded"}}, "has ended, and did not fail"),
        (
            {"status": {"phase": "Failed", "reason": "OutOfMemory", "message": "node  is\nfull"}},
            "failed: OutOfMemory: node is full",
        ),
        (
            {
                "status": {
                    "phase": "Failed",
                    "containerStatuses": [
                        {"name": "fine", "state": {"terminated": {"reason": "Completed"}}},
                        {"name": "main", "state": {"terminated": {"reason": "OOMKilled"}}},
                    ],
                }
            },
            "failed: container main: OOMKilled",
        ),
        ({"status": {"phase": "Failed"}}, "failed, and does not say why"),
        ({"spec": {"containers": []}}, "asks for no GPU: no container has"),
        ({"spec": {"schedulingGates": [{"name": "a/b"}]}}, "waits until its scheduling gates"),
    ],
)
def test_what_the_pod_says_of_itself(changes: dict[str, Any], expected: str) -> None:
    given = pod("p", 7)
    merged = {name: {**part, **changes.get(name, {})} for name, part in given.items()}
    assert reason(merged).startswith(expected)


def test_a_pod_that_no_gpu_could_serve() -> None:
    assert reason(pod("p", 7, 33)) == (
        "can run on no GPU: container main: aliyun.com/gpu-core.percentage=33: expected a multiple"
        " of 5 from 5 to 100"
    )


@pytest.mark.parametrize("plural", CONTROLLERS)
def test_what_makes_pods_that_no_gpu_could_serve(plural: str) -> None:
    kind, warning = plural.removesuffix("s"), {"type": "Warning", "reason": "FailedCreate"}
    events = [{**warning, "message": "exceeded quota"}]
    maker = controller(plural, pod("p", 7, 33))
    maker["metadata"] = {"name": "x", "namespace": "ml"}
    assert explain_maker(kind, maker, events) == (
        f"{kind} ml/x gets no pod: container main: aliyun.com/gpu-core.percentage=33: expected a"
        " multiple of 5 from 5 to 100"
    )
    for has in ({"replicas": 2}, {"active": 1}, {"active": [{}]}, {"currentNumberScheduled": 1}):
        assert " gets no new pod: container main: " in explain_maker(
            kind, {**maker, "status": has}, []
        )
    maker = {**controller(plural, pod("p", 7, 30)), "metadata": maker["metadata"]}
    assert explain_maker(kind, maker, events) == f"{kind} ml/x says: FailedCreate: exceeded quota"
    failed = {"type": "ReplicaFailure", "reason": "FailedCreate", "message": "no account"}
    conditions = [{"type": "Available", "status": "True"}, {**failed, "status": "True"}]
    maker["status"] = {"conditions": conditions, "replicas": 0}
    assert explain_maker(kind, maker, []) == f"{kind} ml/x says: FailedCreate: no account"
    conditions[1]["status"] = "False"
    assert explain_maker(kind, maker, []) == (
        f"{kind} ml/x may have pods: ask about one of them, by --why POD"
    )


def test_a_pod_on_a_node() -> None:
    running = fill("p", 7, "gpu-b", B0)
    assert reason(running) == "runs on gpu-b"
    starting = {**running, "status": {"phase": "Pending"}}
    assert reason(starting) == "waits on gpu-b: its containers are being created"
    warning = {"type": "Warning", "reason": "FailedMount", "message": "no volume"}
    assert reason(starting, events=[warning]) == "waits on gpu-b: FailedMount: no volume"
    refused = {"reason": "CreateContainerError", "message": "cgpu: no"}
    starting["status"]["containerStatuses"] = [{"name": "main", "state": {"waiting": refused}}]
    assert reason(starting) == "waits on gpu-b: container main: CreateContainerError: cgpu: no"
    starting["status"]["containerStatuses"][0]["name"] = "\33[2J"  # whatever a kubelet writes
    assert reason(starting).startswith("waits on gpu-b: container \\x1b[2J: CreateContainerError")
    running["metadata"]["deletionTimestamp"] = "2026-11-23T00:00:00Z"
    assert reason(running).startswith("is being deleted, and keeps its part of a GPU until")


def test_a_pod_on_a_node_that_gives_it_no_gpu() -> None:
    assert reason(bound(pod("p", 7), "gpu-b")).startswith(
        "is bound to gpu-b and gets no GPU there: nothing was decided for it"
    )
    forged = fill("p", 7, "gpu-b", B0)
    forged["metadata"]["uid"] = "another"
    assert "gets no GPU there: cgpu/allocation: pod=uid-default-p: expected another" in reason(
        forged
    )


def test_control_characters_and_long_messages_stay_on_one_line() -> None:
    given = pod("p", 7)
    given["status"] = {"phase": "Failed", "reason": "R", "message": "\x1b[31m" + "x" * 1000}
    sentence = reason(given)
    assert "\x1b" not in sentence
    assert len(sentence) < 500
