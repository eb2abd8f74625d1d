"""A node whose GPUs somebody else offers too gives none to claims. DRA-5."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cgpu_k8s.apiserver.resources import SLICES
from lab.cluster.claim_lab import V100, ClaimLab
from lab.cluster.claims import NODE, result
from lab.containers.enclosure import wait_until
from lab.kubernetes.agents import asked, fake_engine
from lab.kubernetes.device_plugins import allocatable, fake_kubelet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lab.kubernetes.fake_server import FakeServer

pytestmark = pytest.mark.integration

UUID = V100[1].uuid


@pytest.fixture
def lab(fake: FakeServer, tmp_path: Path) -> Iterator[ClaimLab]:
    with fake_engine(tmp_path / "engine") as engine:
        yield ClaimLab(fake, engine, tmp_path)


def test_dra_5_beside_another_device_plugin_nothing_is_offered(
    lab: ClaimLab, tmp_path: Path
) -> None:
    item = lab.claim(result(1))
    with fake_kubelet(tmp_path / "kubelet") as kubelet:
        kubelet.allocatable = allocatable(("nvidia.com/gpu", (UUID,)), ("aliyun.com/gpu-count", ()))
        with lab.running(f"--pod-resources={kubelet.folder / 'kubelet.sock'}"):
            sentence = f"GPU {UUID} is also offered as nvidia.com/gpu: stop the plugin that does it"
            wait_until(lambda: sentence in lab.log.read_text(), "its log says why")
            assert lab.devices() == []
            assert sentence in lab.prepare(item)[item["metadata"]["uid"]].error
            assert (lab.held(), lab.files()) == ([], [])


def test_dra_5_beside_another_dra_driver_nothing_is_offered_till_it_is_gone(lab: ClaimLab) -> None:
    held, item = lab.claim(result(1, "1Gi"), name="held"), lab.claim(result(1, "1Gi"))
    device = {"name": "gpu-1", "attributes": {"index": {"int": 1}, "uuid": {"string": UUID}}}
    other = {
        "metadata": {"name": "of-nvidias"},
        "spec": {"driver": "gpu.nvidia.com", "nodeName": NODE, "devices": [device]},
    }
    with lab.running():
        wait_until(lab.devices, "they are offered")
        assert lab.prepare(held)[held["metadata"]["uid"]].error == ""
        asked(lab.fake, "POST", SLICES.path(), other)
        wait_until(lambda: lab.devices() == ["gpu-1"], "only the other one offers it")
        error = lab.prepare(item)[item["metadata"]["uid"]].error
        assert f"GPU {UUID} is also offered by the DRA driver gpu.nvidia.com" in error
        assert len(lab.held()) == 1
        asked(lab.fake, "DELETE", SLICES.path("of-nvidias"))
        wait_until(lambda: lab.devices() == ["gpu-0", "gpu-1"], "they are offered again")
        assert lab.prepare(item)[item["metadata"]["uid"]].error == ""


def test_slices_of_other_drivers_for_other_devices_are_in_nobodys_way(lab: ClaimLab) -> None:
    device = {"name": "nic", "attributes": {"uuid": {"string": "GPU"}, "rdma": {"bool": True}}}
    other = {
        "metadata": {"name": "of-a-network"},
        "spec": {"driver": "net.example", "nodeName": NODE, "devices": [device]},
    }
    asked(lab.fake, "POST", SLICES.path(), other)
    with lab.running():
        wait_until(lambda: lab.devices().count("gpu-0") == 1, "they are offered")
