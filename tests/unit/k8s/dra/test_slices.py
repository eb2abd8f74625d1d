"""How a node's GPUs are published to claims. DRA-1, DRA-3, DRA-8."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpu_k8s.dra.slices import (
    GpuProblem,
    SliceGpu,
    SliceNode,
    find_other_offer,
    format_mib,
    plan_slice,
)

pytestmark = pytest.mark.unit

NODE = SliceNode("gpu-a", "uid-of-gpu-a")
FACTS = {
    "brand": "Tesla",
    "architecture": "Volta",
    "driverVersion": "535.129.03",
    "cudaComputeCapability": "7.0",
    "cudaDriverVersion": "12.2",
    "pciBusID": "0000:3b:00.0",
}
V100 = SliceGpu(0, "GPU-a", "Tesla V100-SXM2-16GB", 16160, FACTS, "pci0000:3a", 1)
H100 = SliceGpu(1, "GPU-b", "NVIDIA H100 80GB HBM3", 81920)


def planned(*gpus: SliceGpu, current: Any = None) -> Any:
    found = plan_slice(NODE, gpus, current)
    assert found is not None
    return found


def stored(item: Any) -> Any:
    """As the API server has it: with more of its own."""
    about = {**item["metadata"], "resourceVersion": "7", "uid": "of-the-slice"}
    return json.loads(json.dumps({**item, "metadata": about}))


def test_dra_1_a_gpu_is_a_device_that_claims_share() -> None:
    item = planned(H100, V100)
    assert (item["apiVersion"], item["kind"]) == ("resource.k8s.io/v1", "ResourceSlice")
    spec = item["spec"]
    assert (spec["driver"], spec["nodeName"]) == ("gpu.cgpu", "gpu-a")
    assert spec["pool"] == {"name": "gpu-a", "generation": 1, "resourceSliceCount": 1}
    [owner] = item["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Node", "uid-of-gpu-a")
    one, two = spec["devices"]
    assert (one["name"], two["name"]) == ("gpu-0", "gpu-1")
    assert one["allowMultipleAllocations"] is True
    assert one["capacity"] == {
        "memory": {
            "value": "16160Mi",
            "requestPolicy": {
                "default": "16160Mi",
                "validRange": {"min": "1Mi", "max": "16160Mi", "step": "1Mi"},
            },
        },
        "cores": {
            "value": "100",
            "requestPolicy": {
                "default": "0",
                "validRange": {"min": "0", "max": "100", "step": "5"},
            },
        },
        "slots": {"value": "20", "requestPolicy": {"default": "1", "validValues": ["1"]}},
    }
    assert two["capacity"]["memory"]["value"] == "80Gi"


def test_dra_3_attributes_are_those_that_users_of_nvidias_driver_know() -> None:
    [device] = planned(V100)["spec"]["devices"]
    own = {
        "type": {"string": "gpu"},
        "index": {"int": 0},
        "uuid": {"string": "GPU-a"},
        "productName": {"string": "Tesla V100-SXM2-16GB"},
        "brand": {"string": "Tesla"},
        "architecture": {"string": "Volta"},
        "driverVersion": {"version": "535.129.3"},
        "cudaComputeCapability": {"version": "7.0.0"},
        "cudaDriverVersion": {"version": "12.2.0"},
        "pciBusID": {"string": "0000:3b:00.0"},
    }
    standard = {
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:3a"},
        "resource.kubernetes.io/numaNode": {"int": 1},
    }
    assert device["attributes"] == {**own, **standard}
    found = plan_slice(NODE, [V100], None, nvidia_names=True)
    assert found is not None
    [known] = found["spec"]["devices"]
    theirs = {f"gpu.nvidia.com/{name}": value for name, value in own.items()}
    assert known["attributes"] == {**own, **standard, **theirs}
    nothing = {"value": "16160Mi", "requestPolicy": {"default": "0", "validValues": ["0"]}}
    assert known["capacity"] == {**device["capacity"], "gpu.nvidia.com/memory": nothing}
    # what Kubernetes allows of both
    assert len(known["attributes"]) + len(known["capacity"]) <= 32


def test_what_the_driver_does_not_say_is_left_out() -> None:
    odd = H100._replace(facts={"driverVersion": "535.beta", "brand": "x" * 65}, numa_node=None)
    attributes = planned(odd)["spec"]["devices"][0]["attributes"]
    assert "driverVersion" not in attributes
    assert attributes["brand"] == {"string": "x" * 64}
    assert not [name for name in attributes if name.startswith("resource.kubernetes.io/")]


def test_dra_1_unchanged_gpus_are_not_written_again() -> None:
    current = stored(planned(V100, H100))
    assert plan_slice(NODE, [H100, V100], current) is None


@pytest.mark.parametrize(
    ("node", "gpus"),
    [
        (NODE, [V100]),
        (NODE, [V100, H100._replace(mib=40960)]),
        (NODE, [V100._replace(facts={}), H100]),
        (SliceNode("gpu-a", "of-a-node-made-anew"), [V100, H100]),
    ],
)
def test_a_change_replaces_the_slice_at_the_next_generation(
    node: SliceNode, gpus: list[SliceGpu]
) -> None:
    found = plan_slice(node, gpus, stored(planned(V100, H100)))
    assert found is not None
    assert found["metadata"]["resourceVersion"] == "7"
    assert found["metadata"]["ownerReferences"][0]["uid"] == node.uid
    assert found["spec"]["pool"]["generation"] == 2


def test_a_node_without_gpus_offers_an_empty_slice_and_writes_it_once() -> None:
    item = planned(current=stored(planned(V100)))
    assert item["spec"].pop("devices") == []  # the API server stores no empty list
    assert plan_slice(NODE, [], stored(item)) is None


LOST = GpuProblem("GPU-is-lost-error-15", "GPU 1 (GPU-b) does not answer: GPU is lost")


def test_dra_8_the_device_of_a_lost_gpu_has_a_taint_and_keeps_its_time() -> None:
    before = stored(planned(V100, H100))
    sick = H100._replace(problem=LOST)
    fine, item = planned(V100, sick, current=before)["spec"]["devices"]
    taint = {"key": "gpu.cgpu/unhealthy", "value": LOST.taint, "effect": "NoSchedule"}
    assert "taints" not in fine
    assert item == {**before["spec"]["devices"][1], "taints": [taint]}
    written = stored(planned(V100, sick, current=before))
    written["spec"]["devices"][1]["taints"][0]["timeAdded"] = "2026-11-30T08:00:00Z"
    assert plan_slice(NODE, [V100, sick], written) is None
    other = planned(V100._replace(mib=8192), sick, current=written)  # something else changes
    assert other["spec"]["devices"][1]["taints"] == written["spec"]["devices"][1]["taints"]
    worse = sick._replace(problem=LOST._replace(taint="Unknown-Error"))
    [taint] = planned(V100, worse, current=written)["spec"]["devices"][1]["taints"]
    assert (taint["value"], "timeAdded" in taint) == ("Unknown-Error", False)
    assert "taints" not in planned(V100, H100, current=written)["spec"]["devices"][1]


def test_dra_8_without_taints_a_gpu_with_a_problem_is_no_device() -> None:
    sick = H100._replace(problem=LOST)
    found = plan_slice(NODE, [V100, sick], None, has_taints=False)
    assert found is not None
    assert [each["name"] for each in found["spec"]["devices"]] == ["gpu-0"]
    divided = H100._replace(problem=GpuProblem("", "it is in MIG mode"))
    [device] = planned(V100, divided)["spec"]["devices"]
    assert device["name"] == "gpu-0"


@given(st.integers(1, 1 << 22))
def test_memory_is_written_in_the_largest_unit_as_the_api_server_does(mib: int) -> None:
    written = format_mib(mib)
    number, unit = int(written[:-2]), written[-2:]
    power = ("Mi", "Gi", "Ti").index(unit)
    assert number << 10 * power == mib
    assert number % 1024 or unit == "Ti"


def test_dra_5_what_another_driver_offers_is_known_by_the_uuid() -> None:
    def offer(driver: str, **attributes: Any) -> Any:
        device = {"name": "any", "attributes": attributes}
        return {"spec": {"driver": driver, "devices": [{"name": "bare"}, device]}}

    ours = offer("gpu.cgpu", uuid={"string": "GPU-a"})
    network = offer("net.example", uuid={"string": "GPU-ab"}, numa={"int": 0})
    assert find_other_offer([ours, network, {"spec": {"driver": "empty"}}], ["GPU-a"]) == ""
    nvidias = offer("gpu.nvidia.com", anything={"string": "GPU-a"})
    assert find_other_offer([ours, network, nvidias], ["GPU-b", "GPU-a"]) == (
        "GPU GPU-a is also offered by the DRA driver gpu.nvidia.com, so it would be given twice:"
        " keep that driver off this node"
    )
