"""What the agent finds wrong with containers of pods (K8S-15)."""

from __future__ import annotations

import pytest

from cgpu_k8s.node.audit import ContainerMismatch, Living, audit_containers
from cgpu_k8s.node.pods import NodePod, read_node_pod
from cgpu_k8s.objects.gpus import OfferedGpu
from cgpu_node.allocation_annotation import AllocationAnnotation, Grant, format_annotation
from cgpu_node.podspecs import Limit
from cgpu_node.shares.record import PodContainer
from lab.kubernetes.objects import pod

pytestmark = pytest.mark.unit

GPUS = {f"GPU-{n}": OfferedGpu(f"GPU-{n}", n, 16160) for n in range(2)}
ASKED = {"aliyun.com/gpu-mem": "2"}


def guest(
    limits: dict[str, str] | None = None, gpus: tuple[str, ...] = ("GPU-0",), state: str = "running"
) -> NodePod:
    """A pod with UID ``uid`` and one container, which runs."""
    item = pod("train", ASKED if limits is None else limits, nodeName="gpu-a")
    given = {"main": {uuid: Grant(1077) for uuid in gpus}}
    notes = (
        {"cgpu/allocation": format_annotation(AllocationAnnotation("uid", "gpu-a", given))}
        if gpus
        else {}
    )
    item["metadata"] |= {"uid": "uid", "namespace": "ml", "annotations": notes}
    item["status"] = {"containerStatuses": [{"name": "main", "state": {state: {}}}]}
    return read_node_pod(item)


def living(container: str = "main", uid: str = "uid", **caps: int) -> Living:
    by_gpu = {f"GPU-{name[1:]}": mib for name, mib in caps.items()}
    return Living("c1", PodContainer(uid, "ml", "train", container), by_gpu, by_gpu, 1)


def found(
    pods: NodePod, *shares: Living, passing: tuple[str, ...] = (), limited: bool = True
) -> list[ContainerMismatch]:
    return audit_containers(shares, {pods.uid: pods}, GPUS, passing, limited=limited)


def test_a_pod_is_read_with_what_its_containers_ask_for() -> None:
    assert guest().limits == {"main": Limit(2, 0)}
    assert (guest().running, guest(state="waiting").running) == (frozenset({"main"}), frozenset())
    assert (guest().namespace, guest().gpus) == ("ml", frozenset({"GPU-0"}))


def test_a_container_with_what_its_pod_asks_for_is_right() -> None:
    assert found(guest(), living(g0=2154)) == []
    assert found(guest(), living(g0=1000)) == []
    assert found(guest(gpus=("GPU-0", "GPU-1")), living(g0=1077, g1=1077)) == []


@pytest.mark.parametrize(
    ("shares", "gpus", "caps"),
    [
        (living(g0=2155), ("GPU-0",), {"GPU-0": 2154}),
        (living(g0=16160), ("GPU-0",), {"GPU-0": 2154}),
        (living(g0=2154, g1=1077), ("GPU-0", "GPU-1"), {"GPU-0": 1077}),
        (living(g0=2154, g1=2154), ("GPU-0", "GPU-1"), {"GPU-0": 1077, "GPU-1": 1077}),
    ],
)
def test_one_that_may_hold_more_is_held_to_its_pods_limits(
    shares: Living, gpus: tuple[str, ...], caps: dict[str, int]
) -> None:
    [finding] = found(guest(gpus=gpus), shares)
    assert (finding.container, dict(finding.caps)) == ("c1", caps)
    assert "and its limit is aliyun.com/gpu-mem=2: it is held to that" in finding.sentence


def test_one_whose_pod_asks_for_nothing_may_hold_nothing() -> None:
    """A cap of 0 would be none."""
    findings = found(guest({}, ()), living(g0=4000))
    assert [dict(each.caps) for each in findings] == [{"GPU-0": 1}]
    assert found(guest({}, ()), living(g0=1)) == []
    other = found(guest(), living("other", g0=4000))
    assert {"GPU-0": 1} in [dict(each.caps) for each in other]


def test_one_on_other_gpus_than_its_pods_decision_is_reported() -> None:
    [finding] = found(guest(gpus=("GPU-1",)), living(g0=1000))
    assert not finding.caps
    assert "it runs on GPU-0, and the pod's annotation cgpu/allocation names GPU-1" in (
        finding.sentence
    )
    assert "names none: delete the pod" in found(guest(gpus=()), living(g0=1000))[0].sentence


def test_one_that_runs_without_a_share_is_reported() -> None:
    [finding] = found(guest())
    assert "pod ml/train, container main: it runs without a share" in finding.sentence
    assert found(guest(), limited=False) == []
    assert found(guest(state="terminated")) == []
    assert found(guest({}, ())) == []


def test_namespaces_that_pass_through_and_pods_that_are_not_known_are_left_alone() -> None:
    assert found(guest(), living(g0=16160), passing=("ml",)) == []
    assert found(guest(), living(g0=2154), living(uid="another", g1=16160)) == []
    assert found(guest(), living(g0=2154), Living("c2", None, {"GPU-0": 9}, {"GPU-0": 9}, 1)) == []
