"""Why pods wait that ask for extended resources, for which Kubernetes makes claims."""

from __future__ import annotations

from typing import Any

import pytest

from cgpu_k8s.inspect.claim_reasons import explain_claims, is_for_us, make_claims_view
from cgpu_k8s.inspect.claim_text import format_claims
from cgpu_k8s.inspect.claims import ClaimFacts
from cgpu_k8s.inspect.cluster import read_node_facts
from cgpu_k8s.inspect.text import format_summary
from cgpu_k8s.inspect.why import explain_pod
from cgpu_k8s.objects.claims import (
    ClaimingPod,
    read_claim,
    read_claiming_pod,
    read_devices,
    read_own_class,
)
from lab.cluster.claim_objects import V100, claim_of, claims_node, device_class, slice_of
from lab.kubernetes.objects import pod

pytestmark = pytest.mark.unit

FULL = claim_of("full", ("gpu-a", "gpu-0", "16160Mi", "0"), pods=("one",))


def asking(*amounts: str, resource: str = "nvidia.com/gpu") -> Any:
    """A pod whose containers ask for these amounts of a resource."""
    found = pod("p")
    found["metadata"]["namespace"] = "default"
    [first] = found["spec"]["containers"]
    found["spec"]["containers"] = [
        {**first, "name": f"c{number}", "resources": {"limits": {resource: amount, "cpu": "1"}}}
        for number, amount in enumerate(amounts)
    ]
    return found


def read(item: Any) -> ClaimingPod:
    found = read_claiming_pod(item)
    assert found is not None
    return found


def known(*claims: Any, waiting: Any = None) -> ClaimFacts:
    """Two V100 of one node, and NVIDIA's class, which is ours."""
    item = device_class("gpu.nvidia.com")
    item["spec"]["extendedResourceName"] = "nvidia.com/gpu"
    own = read_own_class(item)
    assert own is not None
    return ClaimFacts(
        {"gpu-a": read_devices(slice_of("gpu-a", V100, V100))},
        {(each.namespace, each.name): each for each in map(read_claim, claims)},
        [read(waiting)] if waiting else [],
        frozenset({own.name}),
        dict.fromkeys(own.resources, own.name),
    )


@pytest.mark.parametrize(
    ("item", "claims", "why"),
    [
        (asking("3"), [], "nvidia.com/gpu: 3 GPUs of one node are asked for, and no node has more"),
        (asking("1", "2"), [], "nvidia.com/gpu: 3 GPUs of one node are asked for"),
        (asking("2"), [FULL], "nvidia.com/gpu: 2 GPUs of one node are asked for, and no node has"),
        (asking("2"), [], "there is room for 2 nvidia.com/gpu, and its scheduler has not answered"),
        (
            asking("3", resource="deviceclass.resource.kubernetes.io/gpu.nvidia.com"),
            [],
            "deviceclass.resource.kubernetes.io/gpu.nvidia.com: 3 GPUs of one node",
        ),
    ],
)
def test_dra_7_a_pod_that_waits_for_a_resource_shows_why(
    item: Any, claims: list[Any], why: str
) -> None:
    assert explain_claims(read(item), known(*claims)).startswith(why)
    found = explain_pod(item, None, [], [], [], claims=known(*claims))
    assert found.startswith(f"pod default/p waits: {why}")


def test_dra_7_pods_that_wait_for_a_resource_are_listed() -> None:
    nodes = [read_node_facts(claims_node("gpu-a", "10.0.0.1"))]
    view = make_claims_view(nodes, known(waiting=asking("3")), "")
    *_, table = format_claims(view, format_summary, cores=False)
    assert table.splitlines()[1].split()[:3] == ["p", "default", "nvidia.com/gpu"]


def test_resources_of_others_are_not_for_us() -> None:
    assert not is_for_us(read(asking("1", resource="rdma/hca")), known())
    assert read_claiming_pod(asking("6", resource="aliyun.com/gpu-mem")) is None
    assert read_claiming_pod(asking("0")) is None
    assert read_own_class(device_class("theirs", "gpu.example.com")) is None
