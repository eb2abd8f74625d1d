"""The links between GPUs, as the driver shows them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from cgpu_node.facts import discovery
from cgpu_sim import Gpu, make_driver_dir

pytestmark = pytest.mark.integration

SINGLE, HOST_BRIDGE, SYSTEM = 10, 30, 50  # as NVML numbers levels


def links(driver: Path) -> list[list[int]]:
    """What the probe answers, twice: the second answer is the one it remembers."""
    with discovery.start_probe("gpus", str(driver), subprocess.PIPE) as running:
        out, _ = running.communicate(b"\n\n", timeout=60)
    first, second = (json.loads(line)["links"] for line in out.splitlines())
    assert first == second
    return list(first)


def test_gpus_of_one_island_have_nvlinks_to_each_other(tmp_path: Path) -> None:
    gpus = [Gpu(island=1 + n // 2, nvlinks=4) for n in range(4)]
    assert links(make_driver_dir(tmp_path / "driver", gpus)) == [
        [0, 1, SINGLE, 4],
        [0, 2, SYSTEM, 0],
        [0, 3, SYSTEM, 0],
        [1, 2, SYSTEM, 0],
        [1, 3, SYSTEM, 0],
        [2, 3, SINGLE, 4],
    ]


def test_gpus_at_one_switch_have_all_their_nvlinks_to_each_other(tmp_path: Path) -> None:
    gpus = [Gpu("H100", 81559, island=1, nvlinks=18, switched=True) for _ in range(3)]
    found = links(make_driver_dir(tmp_path / "driver", gpus))
    assert found == [[0, 1, SINGLE, 18], [0, 2, SINGLE, 18], [1, 2, SINGLE, 18]]


def test_gpus_without_nvlinks_meet_where_their_paths_over_pcie_do(tmp_path: Path) -> None:
    assert links(make_driver_dir(tmp_path / "driver", [Gpu(), Gpu()])) == [[0, 1, HOST_BRIDGE, 0]]
    assert links(make_driver_dir(tmp_path / "one", [Gpu()])) == []
