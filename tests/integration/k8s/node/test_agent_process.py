"""The agent as a process: a simulated driver, an API server, and a kubelet over real gRPC.

K8S-1, K8S-3, K8S-12.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import grpc
import pytest

from cgpu_k8s.apiserver.resources import NODES
from cgpu_k8s.kubelet import device_plugin
from cgpu_k8s.node.agent import LOOK
from cgpu_node import exclusive
from cgpu_node.exclusive import Exclusive
from cgpu_node.settings import kubernetes
from lab.containers.enclosure import wait_until
from lab.driver.nvml_base import make_machine
from lab.kubernetes.agents import COUNT, V100, Lab, agent_lab, asked
from lab.kubernetes.device_plugins import allocatable, fake_kubelet, pod_resources
from lab.kubernetes.faults import Fault
from lab.kubernetes.objects import pod, pods_path

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from lab.kubernetes.device_plugins import FakeKubelet
    from lab.kubernetes.fake_server import FakeServer

pytestmark = pytest.mark.integration

PARTS = ("capacity", "allocatable")


@pytest.fixture
def lab(fake: FakeServer, tmp_path: Path) -> Iterator[Lab]:
    with agent_lab(fake, tmp_path, "core_mem") as found:
        yield found


def test_a_labelled_node_offers_its_gpus_and_then_nothing_is_written(lab: Lab) -> None:
    with lab.agent("--pass-through", "monitoring"):
        wait_until(lambda: lab.offers("core_mem"), "the node offers its GPUs")
        assert lab.resources() == {
            "aliyun.com/gpu-mem": "60",
            "aliyun.com/gpu-core.percentage": "400",
        }
        assert lab.node()["metadata"]["labels"]["aliyun.accelerator/nvidia_mem"] == "16160MiB"
        assert kubernetes.read_setting(str(lab.setting)) == kubernetes.Kubernetes(
            "gpu-a", "core_mem", ("monitoring",)
        )
        assert lab.kubelet.registered == [("v1beta1", "cgpu.sock", COUNT)]
        assert lab.kubelet.devices[COUNT] == {gpu.uuid: "Healthy" for gpu in V100}
        before = lab.writes()
        time.sleep(16)  # it looks three times
        assert lab.writes() == before
    with lab.agent():  # and it finds all as it left it
        wait_until(lambda: len(lab.kubelet.registered) == 2, "the next agent registers")
        wait_until(lambda: bool(lab.kubelet.devices[COUNT]), "and publishes")
    assert [call for call in lab.writes() if "PATCH" in call] == [
        call for call in before if "PATCH" in call
    ]
    assert lab.setting.stat().st_mode & 0o777 == 0o644


def test_the_plugin_registers_with_each_kubelet_that_starts(lab: Lab) -> None:
    with lab.agent():
        for starts in range(1, 6):
            wait_until(lambda: COUNT in lab.kubelet.devices, "a kubelet knows the devices")
            assert len(lab.kubelet.registered) == starts
            lab.kubelet.stop()
            lab.kubelet.start()
        wait_until(lambda: COUNT in lab.kubelet.devices, "the last one, too")
        with pytest.raises(grpc.RpcError, match="no resource to ask for"):
            lab.kubelet.ask("Allocate")


def test_a_plugin_to_which_no_kubelet_listens_registers_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet took it, and did not reach it afterwards, or gave it up later."""
    monkeypatch.setattr(device_plugin, "CALL", 0.1)
    reports: list[str] = []

    async def work(kubelet: FakeKubelet) -> None:
        plugin = device_plugin.DevicePlugin(kubelet.folder, lambda event, _: reports.append(event))
        await plugin.publish({"GPU-1": True})
        running = asyncio.create_task(plugin.run())
        await reached(lambda: len(kubelet.registered) == 3, "it is taken again and again")
        assert reports == ["registered", "not_registered"]  # which is no news
        kubelet.listens = True
        await reached(lambda: COUNT in kubelet.devices, "a kubelet knows the devices")
        assert reports == ["registered", "not_registered", "registered"]
        taken = len(kubelet.registered)
        kubelet.devices.clear()
        kubelet.calls[-1].cancel()
        await reached(lambda: COUNT in kubelet.devices, "and does again")
        assert len(kubelet.registered) == taken + 1
        assert reports[3:] == ["not_registered", "registered"]
        running.cancel()

    def reached(condition: Callable[[], object], what: str) -> Awaitable[None]:
        return asyncio.to_thread(wait_until, condition, what)

    with fake_kubelet(tmp_path / "plugins") as kubelet:
        kubelet.listens = False
        asyncio.run(work(kubelet))


def test_a_caller_that_hangs_up_is_no_news(lab: Lab) -> None:
    with lab.agent():
        wait_until(lambda: COUNT in lab.kubelet.devices, "a kubelet knows the devices")
        socket = lab.kubelet.folder / lab.kubelet.registered[-1][1]
        with grpc.insecure_channel(f"unix:{socket}") as channel:
            answers = channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch")(b"")
            next(answers)
            answers.cancel()
        lab.label("cgpu")
        wait_until(lambda: lab.offers("cgpu"), "the agent has gone on")
    events = {line.split()[0] for line in lab.log.read_text().splitlines()}
    assert events == {"serves", "mode_in_force", "registered", "written"}


def test_no_resources_are_written_before_a_kubelet_has_the_plugin(lab: Lab) -> None:
    lab.kubelet.stop()
    (lab.kubelet.folder / "kubelet.sock").unlink(missing_ok=True)
    with lab.agent():
        wait_until(lambda: "no kubelet listens" in lab.log.read_text(), "it says so")
        wait_until(lab.setting.exists, "the mode is in force")
        assert lab.resources() == {}
        lab.kubelet.start()
        wait_until(lambda: lab.offers("core_mem"), "the node offers its GPUs")


def test_a_gpu_that_is_lost_and_one_that_is_back_are_seen(lab: Lab) -> None:
    assert LOOK < 10  # seconds, within which either is to be seen
    with lab.agent():
        wait_until(lambda: lab.offers("core_mem"), "the node offers its GPUs")
        lab.lose_a_gpu()
        wait_until(lambda: lab.healthy().count(False) >= 1, "a GPU is lost")
        wait_until(lambda: "Unhealthy" in lab.kubelet.devices[COUNT].values(), "also the kubelet")
        assert lab.resources()["aliyun.com/gpu-mem"] == "60"
        make_machine(lab.driver, V100)
        wait_until(lambda: all(lab.healthy()), "all are back")
    reasons = [reason for reason, _ in lab.events()]
    assert "GpuLost" in reasons
    assert "GpuBack" in reasons


def test_a_driver_that_hangs_is_one_that_lost_its_gpus_and_is_asked_anew(lab: Lab) -> None:
    with lab.agent():
        wait_until(lambda: lab.offers("core_mem"), "the node offers its GPUs")
        [probe] = lab.probes()
        probe.suspend()
        wait_until(lambda: lab.healthy() == [False] * 4, "the GPUs are lost")
        wait_until(lambda: all(lab.healthy()), "another probe finds them")
        assert probe not in lab.probes()
    why = [message for reason, message in lab.events() if reason == "GpuLost"]
    assert "gets no more pods until it does: the driver does not say which GPUs" in why[0]


def test_a_label_that_changes_under_pods_is_held_back(lab: Lab) -> None:
    with lab.agent():
        wait_until(lambda: lab.offers("core_mem"), "the node offers its GPUs")
        limits = {"aliyun.com/gpu-mem": "2", "aliyun.com/gpu-core.percentage": "30"}
        asked(lab.fake, "POST", pods_path(), pod("train", limits, nodeName="gpu-a"))
        lab.label("cgpu")
        wait_until(lambda: "GpuModeHeld" in dict(lab.events()), "an event says so")
        held = "label ack.node.gpu.schedule=cgpu is held back, and core_mem stays in force,"
        assert dict(lab.events())["GpuModeHeld"] == f"{held} until pod default/train has ended"
        assert lab.offers("core_mem")
        asked(lab.fake, "DELETE", f"{pods_path()}/train", {"gracePeriodSeconds": 0})
        wait_until(lambda: lab.offers("cgpu"), "the label is in force")
        assert lab.resources() == {"aliyun.com/gpu-mem": "60"}
        found = kubernetes.read_setting(str(lab.setting))
        assert found is not None
        assert found.mode == "cgpu"


def test_a_node_that_is_no_longer_to_be_shared_offers_nothing(lab: Lab) -> None:
    with lab.agent():
        wait_until(lambda: lab.offers("core_mem"), "the node offers its GPUs")
        lab.label("cgup")
        wait_until(lambda: "GpusNotOffered" in dict(lab.events()), "an event says why")
        assert "perhaps cgpu" in dict(lab.events())["GpusNotOffered"]
        assert lab.resources() == {}
        assert not lab.setting.exists()
        lab.label("share")
        wait_until(lambda: lab.offers("share"), "the node offers its GPUs")
        lab.label(None)
        wait_until(lambda: lab.facts() is None, "nothing is left")
        assert lab.resources() == {}
        assert not lab.setting.exists()
    assert [reason for reason, _ in lab.events()] == ["GpusNotOffered"]


@pytest.mark.parametrize("label", ["mig", "mps", "default", "disabled", None])
def test_a_node_that_is_left_to_others_keeps_what_they_wrote(lab: Lab, label: str | None) -> None:
    theirs = {f"aliyun.accelerator/nvidia_{name}": "theirs" for name in ("name", "mem", "count")}
    merge = "application/merge-patch+json"
    asked(lab.fake, "PATCH", NODES.path("gpu-a"), {"metadata": {"labels": theirs}}, merge)
    amounts = {"aliyun.com/gpu-mem": "7"}
    patch = {"status": {"capacity": amounts, "allocatable": amounts}}
    asked(lab.fake, "PATCH", NODES.path("gpu-a", part="status"), patch, merge)
    lab.label(label)
    before = lab.node()
    with lab.agent():
        wait_until(lambda: "serves" in lab.log.read_text(), "it works")
        time.sleep(7)  # it looks twice
        assert lab.node() == before
        assert lab.probes() == []  # and the GPUs are not in use
        why = f"ack.node.gpu.schedule={label}: cgpu does not"
        unserved = [("GpusNotOffered", True)] if label in {"mig", "mps"} else []
        assert [(reason, why in text) for reason, text in lab.events()] == unserved
        lab.label("cgpu")
        wait_until(lambda: lab.offers("cgpu"), "the node offers its GPUs")
        assert lab.node()["metadata"]["labels"]["aliyun.accelerator/nvidia_count"] == "4"
        assert len(lab.probes()) == 1
        lab.label(label)
        wait_until(lambda: not lab.facts() and not lab.setting.exists(), "all is taken back")
        assert lab.resources() == {}
        assert not theirs.keys() & lab.node()["metadata"]["labels"].keys()
        wait_until(lambda: lab.probes() == [], "the GPUs are not in use")


def test_resources_that_an_agent_wrote_before_it_died_are_taken_back(lab: Lab) -> None:
    fault = lab.fake.fail(Fault("PATCH", NODES.path("gpu-a"), status=500, times=99))
    with lab.agent() as agent:
        wait_until(lambda: lab.resources() != {}, "the resources are written")
        agent.kill()
    assert lab.facts() is None
    fault.times = 0
    lab.label("default")
    with lab.agent():
        wait_until(lambda: lab.resources() == {}, "they are taken back")
        wait_until(lambda: not lab.setting.exists(), "and pods are like any other container")


def test_a_node_with_nvidias_plugin_offers_nothing(lab: Lab) -> None:
    with lab.agent():
        wait_until(lambda: lab.offers("core_mem"), "the node offers its GPUs")
        patch = {"status": {"allocatable": {"nvidia.com/gpu": "4"}}}
        path = NODES.path("gpu-a", part="status")
        asked(lab.fake, "PATCH", path, patch, "application/merge-patch+json")
        wait_until(lambda: lab.facts() is None, "nothing is offered")
        wait_until(lambda: "GpusNotOffered" in dict(lab.events()), "an event says why")
        assert "stop NVIDIA's plugin on it" in dict(lab.events())["GpusNotOffered"]


def test_a_node_whose_gpus_another_plugin_offers_by_any_name_offers_nothing(lab: Lab) -> None:
    """By the IDs of its devices; our own plugin has such IDs, too."""
    with lab.agent():
        wait_until(lambda: lab.offers("core_mem"), "the node offers its GPUs")
        uuid = lab.facts()["gpus"][1]["uuid"]
        ours = ("aliyun.com/gpu-count", (uuid,))
        lab.kubelet.allocatable = allocatable(ours, ("nvidia.com/v100", ("x", f"{uuid}::3")))
        wait_until(lambda: lab.facts() is None, "nothing is offered")
        wait_until(lambda: "GpusNotOffered" in dict(lab.events()), "an event says why")
        why = f"GPU {uuid} is also offered as nvidia.com/v100: stop the plugin that does it"
        assert why in dict(lab.events())["GpusNotOffered"]
        lab.kubelet.allocatable = allocatable(ours)
        wait_until(lambda: lab.offers("core_mem"), "and offers them again without it", 120)


@pytest.mark.parametrize("what", ["a misspelt label", "no label", "NVIDIA's plugin"])
def test_what_withholds_a_node_takes_nothing_from_its_pods(lab: Lab, what: str) -> None:
    with lab.agent():
        wait_until(lambda: lab.offers("core_mem"), "the node offers its GPUs")
        limits = {"aliyun.com/gpu-mem": "2", "aliyun.com/gpu-core.percentage": "30"}
        asked(lab.fake, "POST", pods_path(), pod("train", limits, nodeName="gpu-a"))
        before = lab.resources()
        if what == "NVIDIA's plugin":
            patch = {"status": {part: {"nvidia.com/gpu": "4"} for part in PARTS}}
            path = NODES.path("gpu-a", part="status")
            asked(lab.fake, "PATCH", path, patch, "application/merge-patch+json")
        else:
            lab.label("cgup" if what == "a misspelt label" else None)
        wait_until(lambda: "GpusNotOffered" in dict(lab.events()), "an event says why")
        stays = "what the node offered stays until pod default/train has ended"
        assert stays in dict(lab.events())["GpusNotOffered"]
        assert (lab.resources(), lab.offers("core_mem")) == (before, True)
        assert lab.setting.exists()
        asked(lab.fake, "DELETE", f"{pods_path()}/train", {"gracePeriodSeconds": 0})
        wait_until(lambda: lab.facts() is None, "nothing is offered")
        wait_until(lambda: not lab.setting.exists(), "nor enforced")
        assert lab.resources() == {}


def test_a_mode_that_is_held_back_outlives_the_agent(lab: Lab) -> None:
    with lab.agent() as agent:
        wait_until(lambda: lab.offers("core_mem"), "the node offers its GPUs")
        limits = {"aliyun.com/gpu-mem": "2", "aliyun.com/gpu-core.percentage": "30"}
        asked(lab.fake, "POST", pods_path(), pod("train", limits, nodeName="gpu-a"))
        agent.kill()
    lab.label("cgpu")
    with lab.agent():
        wait_until(lambda: "GpuModeHeld" in dict(lab.events()), "an event says so")
        assert lab.offers("core_mem")
        found = kubernetes.read_setting(str(lab.setting))
        assert found is not None
        assert found.mode == "core_mem"


@pytest.mark.parametrize("status", [401, 403, 410, 429, 500])
def test_an_api_server_that_refuses_is_asked_again(lab: Lab, status: int) -> None:
    lab.fake.fail(Fault(status=status, times=4, retry_after=1 if status == 429 else None))
    lab.fake.fail(Fault(method="PATCH", status=status, times=1))
    with lab.agent():
        wait_until(lambda: lab.offers("core_mem"), "the node offers its GPUs")
        assert f"with {status}" in lab.log.read_text()


def test_a_second_agent_waits_for_the_first(lab: Lab) -> None:
    with lab.agent() as first:
        wait_until(lambda: lab.offers("core_mem"), "the node offers its GPUs")
        with lab.agent():
            wait_until(lambda: "another agent of this node" in lab.log.read_text(), "it waits")
            first.terminate()
            assert first.wait(30) == 0
            wait_until(lambda: len(lab.kubelet.registered) == 2, "the second one registers")


def test_a_node_without_a_driver_says_so(lab: Lab) -> None:
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (lab.driver / name).unlink()
    with lab.agent():
        wait_until(lambda: "GpusNotOffered" in dict(lab.events()), "an event says why")
        why = dict(lab.events())["GpusNotOffered"]
        assert "libcuda.so.1: No such file or directory" in why
        assert lab.resources() == {}


def test_what_the_kubelet_says_of_whole_gpus_is_left_on_the_node(
    lab: Lab,
) -> None:
    """K8S-8: also on a node whose GPUs are not shared."""
    lab.label("default")
    lab.kubelet.resources = pod_resources(("ml", "train", "main", "nvidia.com/gpu", ("GPU-a",)))
    with lab.agent():
        wait_until(lambda: exclusive.read(str(lab.state)), "it is left there")
        assert exclusive.read(str(lab.state)) == (Exclusive("ml", "train", "main", ("GPU-a",)),)
        lab.kubelet.resources = b"\x0a\x7f"
        wait_until(lambda: "answer is not readable" in lab.log.read_text(), "it says so", 60)
        lab.kubelet.resources = b""
        wait_until(lambda: not exclusive.read(str(lab.state)), "nothing is left", 60)


def test_without_the_kubelets_socket_the_agent_says_so_and_works(lab: Lab) -> None:
    with lab.agent("--pod-resources", str(lab.folder / "none")):
        wait_until(lambda: lab.offers("core_mem"), "the node offers its GPUs")
        text = f"is not known, and not in the metrics: no kubelet listens at {lab.folder}/none"
        wait_until(lambda: text in lab.log.read_text(), "it says so")
