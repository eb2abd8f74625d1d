"""What a node's agent does about a GPU that is lost. K8S-12, REL-10."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cgpu_k8s.apiserver.resources import EVENTS
from cgpu_sim import lose
from lab.containers.enclosure import wait_until
from lab.kubernetes.agents import COUNT, V100, Lab, agent_lab
from lab.kubernetes.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lab.kubernetes.fake_server import FakeServer

pytestmark = pytest.mark.integration

WORDS = "GPU is lost (error 15); nvidia-smi --gpu-reset -i 1, or reboot"


@pytest.fixture(name="lab")
def _lab(fake: FakeServer, tmp_path: Path) -> Iterator[Lab]:
    with agent_lab(fake, tmp_path, "cgpu") as found:
        yield found


def offered(lab: Lab) -> list[int]:
    """The indices of the GPUs that pods are placed on."""
    return [gpu["index"] for gpu in lab.facts()["gpus"] if gpu["healthy"]]


def health(lab: Lab) -> list[str]:
    """What the kubelet knows of the GPUs, by UUID."""
    return [lab.kubelet.devices.get(COUNT, {}).get(gpu.uuid, "") for gpu in V100]


@pytest.mark.parametrize("has_handle", [False, True])
def test_a_gpu_that_is_lost_from_the_start_is_not_offered(lab: Lab, *, has_handle: bool) -> None:
    lose(lab.driver, 1, has_handle=has_handle)
    with lab.agent():
        wait_until(lambda: lab.offers("cgpu"), "the node offers its GPUs")
        assert offered(lab) == [0, 2, 3]
        assert lab.resources() == {"aliyun.com/gpu-mem": "45"}
        known = ["Healthy", "", "Healthy", "Healthy"]
        wait_until(lambda: health(lab) == known, "the kubelet has read the devices")
        sentence = f"not offered to pods: GPU 1 does not answer: {WORDS}"
        wait_until(lambda: ("GpuLost", sentence) in lab.events(), "an event names it")
        lose(lab.driver, 1, 0)
        wait_until(lambda: offered(lab) == [0, 1, 2, 3], "it is back")
        wait_until(lambda: lab.resources() == {"aliyun.com/gpu-mem": "60"}, "with its memory")
    assert [reason for reason, _ in lab.events()] == ["GpuLost"]


def test_an_event_that_is_refused_keeps_no_gpu_back(lab: Lab) -> None:
    """A quota of the namespace may refuse it for good; it is sent once that ends."""
    lose(lab.driver, 1)
    events = EVENTS.path(namespace="default")
    fault = lab.fake.fail(Fault("POST", events, times=999, status=403, reason="Forbidden"))
    with lab.agent():
        wait_until(lambda: lab.offers("cgpu"), "the node offers its GPUs")
        assert offered(lab) == [0, 2, 3]
        assert f"POST {events}" in lab.log.read_text()
        fault.times = 0
        wait_until(lambda: [reason for reason, _ in lab.events()] == ["GpuLost"], "it is sent")


@pytest.mark.parametrize("has_handle", [False, True])
def test_a_gpu_that_is_lost_later_is_named_with_the_drivers_words(
    lab: Lab, *, has_handle: bool
) -> None:
    with lab.agent():
        wait_until(lambda: lab.offers("cgpu"), "the node offers its GPUs")
        lose(lab.driver, 1, has_handle=has_handle)
        wait_until(lambda: offered(lab) == [0, 2, 3], "it gets no more pods")
        wait_until(lambda: health(lab)[1] == "Unhealthy", "the kubelet knows it")
        wait_until(lambda: len(lab.events()) == 1, "an event names it")
        [(reason, message)] = lab.events()
        assert reason == "GpuLost"
        assert message.startswith(f"GPU 1 ({V100[1].uuid}) does not answer, and gets no more pods")
        assert message.endswith(f": {WORDS}")
        lose(lab.driver, 1, 0)
        wait_until(lambda: offered(lab) == [0, 1, 2, 3], "it is back")
        wait_until(lambda: "GpuBack" in dict(lab.events()), "an event says so")


def test_a_node_of_which_every_gpu_is_lost_offers_nothing(lab: Lab) -> None:
    for index in range(len(V100)):
        lose(lab.driver, index)
    with lab.agent():
        wait_until(lambda: "GpusNotOffered" in dict(lab.events()), "an event says why")
        assert lab.facts() is None
        assert lab.resources() == {}
        lost = [message for reason, message in lab.events() if reason == "GpuLost"]
        assert len(lost) == len(V100)
