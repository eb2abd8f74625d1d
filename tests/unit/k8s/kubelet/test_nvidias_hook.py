"""A hook of NVIDIA's in CRI-O gives pods whole GPUs, whatever they ask for. DRA-5."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from cgpu_k8s.kubelet.container_runtime import find_nvidias_hook
from cgpu_k8s.kubelet.runtimes import CONTAINERD, CRIO

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit

CONFIG = {"crio": {"runtime": {"hooks_dir": ["/usr/share/none", "/run/hooks.d"]}}}


def test_a_hook_of_nvidias_is_found_among_others(tmp_path: Path) -> None:
    folder = tmp_path / "run/hooks.d"
    folder.mkdir(parents=True)
    for text in ("{", "[]", '{"hook": 1}', '{"hook": {"path": "/usr/bin/cgpu-hook"}}'):
        (folder / "other.json").write_text(text)
        assert find_nvidias_hook(CRIO, CONFIG, str(tmp_path)) == ""
    hook = {"path": "/usr/local/nvidia/toolkit/nvidia-container-runtime-hook"}
    (folder / "oci-nvidia-hook.json").write_text(json.dumps({"hook": hook}))
    assert find_nvidias_hook(CRIO, CONFIG, str(tmp_path)) == (
        "the hook /run/hooks.d/oci-nvidia-hook.json of cri-o is NVIDIA's, so any pod could have"
        " whole GPUs: remove it, or what installs it"
    )
    assert find_nvidias_hook(CONTAINERD, CONFIG, str(tmp_path)) == "", "it knows no such hooks"
    assert find_nvidias_hook(CRIO, {}, str(tmp_path)) == ""
