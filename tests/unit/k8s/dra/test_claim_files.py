"""The CDI file of a claim: device nodes, and the hook with the claim in its arguments. DRA-9."""

from __future__ import annotations

import json

import pytest

from cgpu_k8s.dra import cdi
from cgpu_node.facts.node import DeviceNode
from lab.cluster.claims import UID

pytestmark = pytest.mark.unit

HOOK = cdi.HookPlace("/usr/local/bin/cgpu-hook", "/run/cgpu")


def make_part(request: str, *numbers: int) -> cdi.ClaimPart:
    nodes = (DeviceNode(f"/dev/nvidia{number}", f"/dev/nvidia{number}") for number in numbers)
    return cdi.ClaimPart(request, tuple(f"GPU-{number}" for number in numbers), tuple(nodes))


def test_the_hook_has_the_claim_from_its_arguments_and_no_variable_has_it() -> None:
    content = json.loads(cdi.write_specification(UID, [make_part("gpu", 3)], HOOK))
    assert (content["cdiVersion"], content["kind"]) == ("0.5.0", "gpu.cgpu/claim")
    [device] = content["devices"]
    assert device["name"] == f"{UID}_gpu"
    edits = device["containerEdits"]
    assert edits["deviceNodes"] == [{"path": "/dev/nvidia3", "hostPath": "/dev/nvidia3"}]
    assert edits["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    [hook] = edits["hooks"]
    assert (hook["hookName"], hook["path"]) == ("createRuntime", "/usr/local/bin/cgpu-hook")
    options = ["--claim", UID, "--gpus", "GPU-3", "--state-dir", "/run/cgpu"]
    assert hook["args"] == ["cgpu-hook", "claim", *options]


def test_dra_4_the_hook_is_told_where_the_node_has_the_driver() -> None:
    place = HOOK._replace(driver_dir="/usr/lib64")
    content = json.loads(cdi.write_specification(UID, [make_part("gpu", 3)], place))
    [hook] = content["devices"][0]["containerEdits"]["hooks"]
    assert hook["args"][-2:] == ["--driver-dir", "/usr/lib64"]


def test_a_container_that_names_a_request_has_the_gpus_of_that_request_alone() -> None:
    parts = [make_part("small", 0, 1), make_part("large/second", 2)]
    content = json.loads(cdi.write_specification(UID, parts, HOOK))
    nodes, gpus = {}, {}
    for each in content["devices"]:
        nodes[each["name"]] = [node["path"] for node in each["containerEdits"]["deviceNodes"]]
        gpus[each["name"]] = each["containerEdits"]["hooks"][0]["args"][5]
    small, large = f"{UID}_small", f"{UID}_large.second"
    assert nodes == {small: ["/dev/nvidia0", "/dev/nvidia1"], large: ["/dev/nvidia2"]}
    assert gpus == {small: "GPU-0,GPU-1", large: "GPU-2"}
    assert cdi.device_id(UID, "large/second") == f"gpu.cgpu/claim={large}"


def test_of_a_simulated_gpu_there_is_no_device_in_the_file() -> None:
    content = json.loads(cdi.write_specification(UID, [make_part("gpu")], HOOK))
    assert "deviceNodes" not in content["devices"][0]["containerEdits"]


def test_a_file_is_found_again_by_its_name_and_others_are_left_alone() -> None:
    assert cdi.device_id(UID, "gpu") == f"gpu.cgpu/claim={UID}_gpu"
    assert cdi.read_uid(cdi.file_name(UID)) == UID
    assert cdi.read_uid("nvidia.json") is None
    assert cdi.read_uid(f"{cdi.file_name(UID)}.new") is None
