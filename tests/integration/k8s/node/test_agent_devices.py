"""Resources as devices, where nobody may write the status of a node. K8S-1."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest

from cgpu_k8s.kubelet import device_plugin_api
from lab.containers.enclosure import wait_until
from lab.driver.nvml_base import Gpu, make_machine
from lab.kubernetes.agents import COUNT, Lab, agent_lab
from lab.kubernetes.device_plugins import fields
from lab.kubernetes.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lab.kubernetes.fake_server import FakeServer

pytestmark = pytest.mark.integration

MEM, CORE = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage"
DEVICES = ("--resources", "devices")
LONGEST = 4 << 20  # bytes of a message that gRPC takes


@pytest.fixture(name="lab")
def _lab(fake: FakeServer, tmp_path: Path) -> Iterator[Lab]:
    fake.fail(Fault("PATCH", ".*/status", status=403, reason="Forbidden", times=1 << 30))
    with agent_lab(fake, tmp_path, "core_mem") as found:
        yield found


def published(lab: Lab) -> dict[str, int]:
    """How many healthy devices the kubelet knows of each resource."""
    return {
        name: sum(health == "Healthy" for health in devices.values())
        for name, devices in lab.kubelet.devices.items()
    }


def test_where_the_status_is_forbidden_a_device_is_a_unit(lab: Lab) -> None:
    with lab.agent(*DEVICES):
        wait_until(lambda: lab.offers("core_mem"), "the node offers its GPUs")
        everything = {COUNT: 4, MEM: 60, CORE: 400}
        wait_until(lambda: published(lab) == everything, "as devices, too")
        assert not [call for call in lab.writes() if "/status" in call]
        assert max(len(name) for name in lab.kubelet.devices[CORE]) == 3
        lab.kubelet.stop()
        lab.kubelet.start()
        wait_until(lambda: published(lab) == everything, "the next kubelet knows them")
        lab.label("cgpu")
        wait_until(lambda: published(lab) == {COUNT: 4, MEM: 60, CORE: 0}, "no time is offered")
        lab.label(None)
        wait_until(lambda: not any(published(lab).values()), "nothing is offered")
        wait_until(lambda: lab.facts() is None, "nor said")


def test_which_devices_a_pod_gets_says_nothing(lab: Lab) -> None:
    """A kubelet gives up where there is no answer for the container."""
    with lab.agent(*DEVICES):
        wait_until(lambda: len(published(lab)) == 3, "the kubelet knows the devices")
        request = b"\x0a\x06\x0a\x01\x37\x0a\x01\x38"  # devices 7 and 8, for one container
        for resource in (MEM, CORE):
            answer = lab.kubelet.ask("Allocate", request, resource)
            assert fields(answer) == [(1, b"")]
        with pytest.raises(grpc.RpcError, match="no resource to ask for"):
            lab.kubelet.ask("Allocate", request, COUNT)


def test_a_lost_gpu_takes_no_devices_from_running_pods(lab: Lab) -> None:
    with lab.agent(*DEVICES):
        wait_until(lambda: published(lab).get(MEM) == 60, "the kubelet knows the devices")
        lab.lose_a_gpu()
        wait_until(lambda: not all(lab.healthy()), "a GPU is lost")
        wait_until(lambda: published(lab)[COUNT] < 4, "the kubelet knows it")
        assert published(lab) | {COUNT: 0} == {COUNT: 0, MEM: 60, CORE: 400}


def test_sixteen_gpus_of_a_tib_fit_into_a_message() -> None:
    units = {str(unit): True for unit in range(16 << 10)}
    assert len(device_plugin_api.encode_devices(units)) < LONGEST / 10


def test_sixteen_large_gpus_reach_a_kubelet(lab: Lab) -> None:
    make_machine(lab.driver, [Gpu("large", 288 << 10, number) for number in range(16)])
    with lab.agent(*DEVICES):
        wait_until(lambda: published(lab).get(MEM) == 16 * 288, "the kubelet knows the devices")


def test_without_the_option_a_status_that_is_forbidden_says_what_to_do(lab: Lab) -> None:
    with lab.agent():
        wait_until(lambda: "--resources devices" in lab.log.read_text(), "it says so")
        assert lab.facts() is None
