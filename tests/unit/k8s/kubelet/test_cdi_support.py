"""Whether an engine gives containers CDI devices, by the configuration that it shows. DRA-5."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_k8s.kubelet.cdi_support import find_problem
from cgpu_k8s.kubelet.runtimes import CONTAINERD, CRIO

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit

FOLDER, BOTH = "/var/run/cdi", ["/etc/cdi", "/var/run/cdi"]
NVIDIAS = {"nvidia": {"options": {"BinaryName": "/usr/bin/nvidia-container-runtime.cdi"}}}
OURS = {"cgpu": {"options": {"BinaryName": "/opt/cgpu/_bin/cgpu-runtime"}}}
CRIOS = {"nvidia": {"runtime_path": "/usr/bin/nvidia-container-runtime"}}


@pytest.mark.parametrize(
    ("engine", "config", "says"),
    [
        (CONTAINERD, {"enableCDI": True, "cdiSpecDirs": BOTH}, ""),
        (CONTAINERD, {"enableCDI": True, "cdiSpecDirs": ["/run/cdi"]}, ""),
        (CONTAINERD, {"cdiSpecDirs": BOTH}, ""),
        (CONTAINERD, {"enableCDI": False, "cdiSpecDirs": BOTH}, "no CDI devices"),
        (CONTAINERD, {"containerd": {}}, "no CDI devices"),
        (CONTAINERD, {"enableCDI": True, "cdiSpecDirs": ["/etc/cdi"]}, "than /var/run/cdi: /etc/"),
        (CRIO, {"crio": {"runtime": {"cdi_spec_dirs": BOTH}}}, ""),
        (CONTAINERD, {"cdiSpecDirs": BOTH, "containerd": {"runtimes": NVIDIAS}}, "is NVIDIA's"),
        (CONTAINERD, {"cdiSpecDirs": BOTH, "containerd": {"runtimes": OURS}}, "is cgpu's"),
        (CONTAINERD, {"cdiSpecDirs": BOTH, "containerd": {"runtimes": {"runc": {}}}}, ""),
        (CRIO, {"crio": {"runtime": {"cdi_spec_dirs": BOTH, "runtimes": CRIOS}}}, "is NVIDIA's"),
        (CRIO, {"crio": {"runtime": {"cdi_spec_dirs": []}}}, "none: add it to its cdi_spec_dirs"),
    ],
)
def test_an_engine_must_read_our_folder(engine: str, config: Any, says: str) -> None:
    found = find_problem(engine, config, FOLDER, "/none")
    assert bool(found) == bool(says)
    assert says in found


def test_dra_5_a_hook_of_nvidias_gives_pods_without_a_claim_gpus(tmp_path: Path) -> None:
    folder = tmp_path / "run/hooks.d"
    folder.mkdir(parents=True)
    about = {"cdi_spec_dirs": BOTH, "hooks_dir": ["/usr/share/none", "/run/hooks.d"]}
    config = {"crio": {"runtime": about}}

    def find() -> str:
        return find_problem(CRIO, config, FOLDER, str(tmp_path))

    for text in ("{", "[]", '{"hook": 1}', '{"hook": {"path": "/usr/bin/cgpu-hook"}}'):
        (folder / "other.json").write_text(text)
        assert find() == ""
    hook = {"path": "/usr/local/nvidia/toolkit/nvidia-container-runtime-hook"}
    (folder / "oci-nvidia-hook.json").write_text(json.dumps({"hook": hook}))
    assert "the hook /run/hooks.d/oci-nvidia-hook.json of cri-o is NVIDIA's" in find()
