"""The CDI file of a claim: device nodes, and the hook with the claim in its arguments. DRA-9."""

from __future__ import annotations

import json

import pytest

from cgpu_k8s.dra import cdi
from cgpu_node.facts.node import DeviceNode
from lab.cluster.claims import UID

pytestmark = pytest.mark.unit

HOOK = cdi.HookPlace("/usr/local/bin/cgpu-hook", "/run/cgpu")


def test_the_hook_has_the_claim_from_its_arguments_and_no_variable_has_it() -> None:
    content = json.loads(
        cdi.write_specification(UID, [DeviceNode("/dev/nvidia3", "/dev/nvidia3")], HOOK)
    )
    assert (content["cdiVersion"], content["kind"]) == ("0.5.0", "gpu.cgpu/claim")
    [device] = content["devices"]
    assert device["name"] == UID
    edits = device["containerEdits"]
    assert edits["deviceNodes"] == [{"path": "/dev/nvidia3", "hostPath": "/dev/nvidia3"}]
    assert edits["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    [hook] = edits["hooks"]
    assert (hook["hookName"], hook["path"]) == ("createRuntime", "/usr/local/bin/cgpu-hook")
    assert hook["args"] == ["cgpu-hook", "claim", "--claim", UID, "--state-dir", "/run/cgpu"]


def test_of_a_simulated_gpu_there_is_no_device_in_the_file() -> None:
    content = json.loads(cdi.write_specification(UID, [], HOOK))
    assert "deviceNodes" not in content["devices"][0]["containerEdits"]


def test_a_file_is_found_again_by_its_name_and_others_are_left_alone() -> None:
    assert cdi.device_id(UID) == f"gpu.cgpu/claim={UID}"
    assert cdi.read_uid(cdi.file_name(UID)) == UID
    assert cdi.read_uid("nvidia.json") is None
    assert cdi.read_uid(f"{cdi.file_name(UID)}.new") is None
