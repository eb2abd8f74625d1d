"""Whether an engine gives containers CDI devices, by the configuration that it shows. DRA-5."""

from __future__ import annotations

from typing import Any

import pytest

from cgpu_k8s.kubelet.cdi_support import find_problem
from cgpu_k8s.kubelet.runtimes import CONTAINERD, CRIO

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
    found = find_problem(engine, config, FOLDER)
    assert bool(found) == bool(says)
    assert says in found
