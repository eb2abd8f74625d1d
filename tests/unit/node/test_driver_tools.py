"""nvidia-smi of the driver: where it lies beside the libraries, on every kind of node."""

from __future__ import annotations

from pathlib import Path

import pytest

from cgpu_hook.container import find_host_files
from cgpu_node.facts.node import Node

pytestmark = pytest.mark.unit


def found(driver_dir: Path) -> dict[str, str]:
    node = Node("535.1", str(driver_dir), {}, {}, (), ())
    return find_host_files("abc", "/run/cgpu", node).tools


@pytest.mark.parametrize(
    ("libraries", "program"),
    [
        ("usr/lib/x86_64-linux-gnu", "usr/bin"),
        ("usr/lib64/nvidia", "usr/bin"),
        ("usr/lib/x86_64-linux-gnu/nvidia/current", "usr/bin"),
        ("usr/local/nvidia/lib64", "usr/local/nvidia/bin"),
        ("home/kubernetes/bin/nvidia/lib64", "home/kubernetes/bin/nvidia/bin"),
        ("opt/nvidia/lib64", "opt/nvidia/bin"),
        ("run/nvidia/driver/usr/lib/x86_64-linux-gnu", "run/nvidia/driver/usr/bin"),
        ("run/nvidia/driver/usr/lib64", "run/nvidia/driver/usr/bin"),
        ("usr/lib/wsl/lib", "usr/lib/wsl/lib"),
        ("driver", "driver/bin"),
    ],
)
def test_mem_4_nvidia_smi_is_found_where_the_driver_has_it(
    libraries: str, program: str, tmp_path: Path
) -> None:
    """MEM-4: one of the node's own distribution is not taken for the driver's."""
    for folder in (libraries, program, "bin"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / program / "nvidia-smi").touch()
    (tmp_path / "bin" / "nvidia-smi").touch()
    expected = str(tmp_path / program / "nvidia-smi")
    assert found(tmp_path / libraries) == {"/usr/bin/nvidia-smi": expected}


def test_a_driver_without_nvidia_smi_has_no_tools(tmp_path: Path) -> None:
    assert found(tmp_path / "usr" / "lib64") == {}
