"""What ``cgpu doctor`` says where no driver is found (CLI-4)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cgpu_doctor import driver, state, users
from cgpu_doctor.finding import Ground
from cgpu_env import CgpuError
from cgpu_install.machine import Machine
from cgpu_node.facts.node import Node, NodeGpu
from cgpu_node.settings.config import CONFIG_PATH

pytestmark = pytest.mark.unit

ABSENT = CgpuError("no NVIDIA driver found on this machine", hint="name it")


@pytest.fixture
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ground:
    """A machine of files, on which no driver is found."""
    monkeypatch.setattr(driver, "_probe_driver", lambda _: ABSENT)
    return Ground(Machine(str(tmp_path)), str(tmp_path), None)


def test_whoever_has_no_gpu_is_told_of_a_simulated_one(ground: Ground) -> None:
    missing, note = driver.check_driver(ground)
    assert (missing.level, missing.what, missing.mend) == ("error", str(ABSENT), ABSENT.hint)
    assert note.level == "note"
    assert "cgpu demo" in note.mend
    assert f"{sys.executable} -m cgpu_sim DIR" in note.mend


def test_whoever_has_a_gpu_or_names_a_driver_is_told_of_the_fault_alone(ground: Ground) -> None:
    with pytest.raises(CgpuError, match="no NVIDIA driver"):
        list(driver.check_driver(ground._replace(driver_dir="/x")))
    module = Path(ground.machine.resolve_path(driver.MODULE))
    module.parent.mkdir(parents=True)
    module.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.1  x\n")
    with pytest.raises(CgpuError, match="no NVIDIA driver"):
        list(driver.check_driver(ground))


@pytest.mark.parametrize(("modes", "levels"), [({}, ["note"]), ({"GPU-1": 0}, ["ok"])])
def test_a_compute_mode_that_the_driver_does_not_report_is_not_in_order(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, modes: dict[str, int], levels: list[str]
) -> None:
    gpus = (NodeGpu(0, "GPU-1", "Tesla T4", 16 << 30, 0, ()),)
    node = Node("1", "/x", {}, {}, gpus, ())
    monkeypatch.setattr(driver, "_probe_driver", lambda _: node)
    monkeypatch.setattr(driver, "compute_modes", lambda _: modes)
    assert [found.level for found in driver.check_compute_mode(ground)] == levels
    monkeypatch.setattr(driver, "_probe_driver", lambda _: node._replace(gpus=()))
    monkeypatch.setattr(driver, "compute_modes", lambda _: {})
    assert list(driver.check_compute_mode(ground)) == []


def test_without_a_driver_nothing_that_needs_one_is_in_order(ground: Ground) -> None:
    (found,) = state.check_shares(ground)
    assert (found.level, found.what) == ("ok", "no container with a share runs")
    with pytest.raises(CgpuError, match="driver directory /x: there is no such directory"):
        list(users.check_accounts(ground._replace(driver_dir="/x")))


@pytest.mark.parametrize("text", ["[node\n", '[driver]\nlibrary_dir = "/nowhere"\n'])
def test_a_wrong_configuration_is_mended_and_not_gone_round(ground: Ground, text: str) -> None:
    """No simulated GPU makes up for it."""
    path = Path(ground.machine.resolve_path(CONFIG_PATH))
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(CgpuError, match="no NVIDIA driver"):
        list(driver.check_driver(ground))
