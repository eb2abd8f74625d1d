"""Which containers have whole GPUs, from what a kubelet answers (K8S-8)."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pytest
from hypothesis import given, strategies

from cgpu_env.errors import CgpuError
from cgpu_k8s.kubelet.pod_resources import (
    PodResources,
    read_exclusive,
    read_given,
    read_offered,
)
from cgpu_node import exclusive
from cgpu_node.exclusive import Exclusive
from lab.kubernetes.device_plugins import field, pod_resources

pytestmark = pytest.mark.unit

TRAIN = Exclusive("ml", "train", "main", ("GPU-a", "GPU-b"))
PODS = (
    ("ml", "train", "main", "nvidia.com/gpu", ("GPU-b", "GPU-a")),
    ("ml", "train", "side", "", ()),
    ("kube-system", "net", "cni", "example.com/nic", ("eth1",)),
    ("web", "slice", "main", "nvidia.com/mig-1g.5gb", ("MIG-c",)),
)


def test_containers_with_devices_of_nvidia_are_found() -> None:
    slice_ = Exclusive("web", "slice", "main", ("MIG-c",))
    assert read_exclusive(pod_resources(*PODS)) == (TRAIN, slice_)
    assert read_exclusive(b"") == ()


def test_devices_on_several_nodes_of_memory_are_one_containers() -> None:
    """A kubelet lists those of each NUMA node apart."""
    given = [field(1, b"nvidia.com/gpu") + field(2, name) for name in (b"GPU-a", b"GPU-b")]
    container = field(1, b"main") + b"".join(field(2, each) for each in given)
    pod = field(1, b"train") + field(2, b"ml") + field(3, container)
    assert read_exclusive(field(1, pod)) == (TRAIN,)


def test_fields_that_later_kubelets_add_are_passed_over() -> None:
    added = b"".join((b"\x48\x96\x01", b"\x51" + b"x" * 8, b"\x5d" + b"x" * 4, field(12, b"new")))
    message = pod_resources(*PODS[:1])
    assert read_exclusive(added + message + added) == (TRAIN,)


@pytest.mark.parametrize("cut", range(1, 57, 7))
def test_an_answer_that_is_cut_off_is_none(cut: int) -> None:
    with pytest.raises(CgpuError, match="the kubelet's answer is not readable"):
        read_exclusive(pod_resources(*PODS[:1])[:-cut])


@given(strategies.binary())
def test_any_bytes_are_read_or_refused(answer: bytes) -> None:
    for read in (read_exclusive, read_given, read_offered):
        with contextlib.suppress(CgpuError):
            read(answer)


def test_what_is_left_on_the_node_is_read_again_while_it_is_new(tmp_path: Path) -> None:
    state = str(tmp_path)
    assert exclusive.read(state) == ()
    exclusive.write(state, [TRAIN])
    assert exclusive.read(state) == (TRAIN,)
    for age in (5 * exclusive.PERIOD, -3600):  # also where the clock was set back since
        when = time.time() - age
        os.utime(tmp_path / "exclusive.json", (when, when))
        assert exclusive.read(state) == ()
    exclusive.write(state, [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "[]", '{"v": 2, "containers": []}', '{"v": 1}', "\xff"])
def test_what_another_release_left_counts_for_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "exclusive.json").write_bytes(text.encode("latin-1"))
    assert exclusive.read(str(tmp_path)) == ()


def claimed(driver: str, device: str) -> bytes:
    """What a kubelet says of a pod whose container has a device of a DRA driver."""
    resource = field(2, driver.encode()) + field(3, b"pool") + field(4, device.encode())
    container = field(1, b"main") + field(5, field(2, b"claim") + field(4, resource))
    return field(1, field(1, b"pod") + field(2, b"ml") + field(3, container))


def test_what_pods_have_is_found_by_resource_and_by_nvidias_driver() -> None:
    answer = pod_resources(*PODS) + claimed("net.example", "nic-0")
    given = {
        "nvidia.com/gpu": ["GPU-b", "GPU-a"],
        "example.com/nic": ["eth1"],
        "nvidia.com/mig-1g.5gb": ["MIG-c"],
    }
    assert read_given(answer) == given
    answer += claimed("gpu.nvidia.com", "gpu-3") + claimed("gpu.nvidia.com", "gpu-1-mig-9-0-1")
    assert read_given(answer) == {**given, "gpu.nvidia.com": ["gpu-3"]}


@pytest.mark.parametrize(
    ("offered", "given_", "says"),
    [
        ({"nvidia.com/gpu": ["GPU-c"], "aliyun.com/gpu-count": ["GPU-a"]}, {}, ""),
        ({"nvidia.com/mig-1g.5gb": ["MIG-c"], "example.com/nic": ["0"]}, {}, ""),
        ({"example.com/v100": ["GPU-a-1"]}, {}, "GPU GPU-a is also offered as example.com/v100"),
        ({"nvidia.com/gpu": ["nvidia0"]}, {}, "GPUs of this node are also offered as nvidia.com/g"),
        ({"nvidia.com/gpu.shared": ["0"]}, {}, "GPUs of this node are also offered as nvidia.com"),
        ({}, {"example.com/v100": ["GPU-a-1"]}, "a pod has GPU GPU-a as example.com/v100: it is"),
        ({}, {"nvidia.com/gpu": ["1"]}, "a pod has a GPU as nvidia.com/gpu: none is offered until"),
        ({}, {"gpu.nvidia.com": ["gpu-1"]}, "a pod has a GPU as gpu.nvidia.com: none is offered"),
        ({}, {"nvidia.com/gpu": ["GPU-c"], "aliyun.com/gpu-count": ["GPU-a"]}, ""),
    ],
)
def test_who_else_offers_or_has_a_gpu(
    offered: dict[str, list[str]], given_: dict[str, list[str]], says: str
) -> None:
    asking = PodResources(Path("/none"), lambda *_: None, None)
    asking._offered.append(offered)  # noqa: SLF001
    asking._given.append(given_)  # noqa: SLF001
    found = asking.find_conflict(["GPU-b", "GPU-a"])
    assert bool(found) == bool(says)
    assert found.startswith(says)


def test_what_one_look_does_not_show_still_counts() -> None:
    """A kubelet that has just started may not know yet what plugins offer and pods have."""
    asking = PodResources(Path("/none"), lambda *_: None, None)
    for looks in (asking._offered, asking._given):  # noqa: SLF001
        found = []
        for look in ({"example.com/v100": ["GPU-a"]}, {}, {}):
            looks.append(look)
            found.append(bool(asking.find_conflict(["GPU-a"])))
        assert found == [True, True, False]
