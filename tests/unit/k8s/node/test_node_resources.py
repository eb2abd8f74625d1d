"""What a node offers, from its GPUs, its label, and what others hold. K8S-1, COS-6."""

from __future__ import annotations

from typing import Any

import pytest

from cgpu_k8s.node.audit import Living
from cgpu_k8s.node.node_resources import (
    NOTHING,
    DriverGpu,
    compute_facts,
    compute_node_resources,
    metadata_patch,
    read_known_gpus,
    status_patch,
)
from cgpu_k8s.node.non_pod_usage import NonPodUsage, sum_non_pod_usage
from cgpu_k8s.objects.gpus import OfferedGpu, read_facts
from cgpu_k8s.objects.links import GpuLink
from cgpu_k8s.objects.nodes import read_node
from cgpu_k8s.objects.pod_request import Part
from cgpu_k8s.scheduler.cache import make_node_info
from cgpu_node.shares.record import PodContainer
from lab.kubernetes.objects import node

pytestmark = pytest.mark.unit

V100 = 16160
NAMES = {f"GPU-{n}": "Tesla V100-SXM2-16GB" for n in range(4)}


def seen(*numbers: int, mib: int = V100) -> list[DriverGpu]:
    return [DriverGpu(f"GPU-{number}", at, "V100", mib) for at, number in enumerate(numbers)]


def written(mode: str, gpus: tuple[OfferedGpu, ...]) -> dict[str, Any]:
    """A labelled node on which an agent has written what it offers."""
    item = node("gpu-a", {"ack.node.gpu.schedule": mode}, cpu="4")
    wanted = compute_node_resources(mode, gpus, NAMES)
    item["metadata"]["labels"] |= wanted.labels
    item["metadata"]["annotations"] = dict(wanted.annotations)
    resources = {name: str(value) for name, value in wanted.resources.items()}
    item["status"] = {"capacity": {"cpu": "4"} | resources, "allocatable": {"cpu": "4"} | resources}
    return item


def test_cos_6_a_node_of_whole_gpus_offers_their_number_and_nothing_else() -> None:
    facts = compute_facts("topology", seen(0, 1), (), (), {"GPU-1": NonPodUsage(1, 1)})
    wanted = compute_node_resources("topology", facts, NAMES)
    assert wanted.resources == {"aliyun.com/gpu": 2}
    offer = read_node(written("topology", facts))
    info = make_node_info(offer)
    assert [info.free_part(gpu).units for gpu in info.gpus.values()] == [15, 14]
    shared = written("cgpu", compute_facts("cgpu", seen(0, 1), (), (), {}))
    assert status_patch(shared, wanted)["status"]["capacity"] == {
        "aliyun.com/gpu-mem": None,
        "aliyun.com/gpu": "2",
    }


def test_the_annotation_has_the_links_of_gpus_that_answer() -> None:
    links: dict[int, dict[int, GpuLink]] = {0: {1: GpuLink("s", 4), 2: GpuLink("y")}, 1: {}}
    three = [gpu._replace(links=links.get(gpu.index, {})) for gpu in seen(0, 1, 2)]
    facts = compute_facts("cgpu", three, (), (), {})
    wanted = compute_node_resources("cgpu", facts, NAMES, three)
    found = read_facts(wanted.annotations["cgpu/gpus"])
    assert found.links == (GpuLink("s", 4), GpuLink("y"), GpuLink())
    lost = (*facts[:2], facts[2]._replace(healthy=False))
    wanted = compute_node_resources("cgpu", lost, NAMES, three)
    found = read_facts(wanted.annotations["cgpu/gpus"])
    assert found.links == (GpuLink("s", 4), GpuLink(), GpuLink())


@pytest.mark.parametrize(
    ("mode", "resources"),
    [
        ("share", {"aliyun.com/gpu-mem": 60}),
        ("cgpu", {"aliyun.com/gpu-mem": 60}),
        ("core_mem", {"aliyun.com/gpu-mem": 60, "aliyun.com/gpu-core.percentage": 400}),
    ],
)
def test_a_node_with_four_gpus_of_16160_mib_offers_60_gib(
    mode: str, resources: dict[str, int]
) -> None:
    wanted = compute_node_resources(mode, compute_facts(mode, seen(0, 1, 2, 3), (), (), {}), NAMES)
    assert wanted.resources == resources
    assert wanted.labels == {
        "aliyun.accelerator/nvidia_name": "Tesla-V100-SXM2-16GB",
        "aliyun.accelerator/nvidia_mem": "16160MiB",
        "aliyun.accelerator/nvidia_count": "4",
    }


def test_gpus_of_different_sizes_count_each_for_itself() -> None:
    others = [DriverGpu("GPU-1", 1, "T4", 15109), DriverGpu("GPU-2", 2, "s", 900)]
    gpus = compute_facts("cgpu", [*seen(0), *others], (), (), {})
    wanted = compute_node_resources("cgpu", gpus, {"GPU-1": "T4"})
    assert wanted.resources == {"aliyun.com/gpu-mem": 29}
    assert wanted.labels["aliyun.accelerator/nvidia_mem"] == "15109MiB"
    assert wanted.labels["aliyun.accelerator/nvidia_name"] == "T4"


def test_the_scheduler_reads_what_the_agent_writes() -> None:
    gpus = compute_facts("core_mem", seen(0, 1), (), (), {"GPU-1": NonPodUsage(1500, 1)})
    offer = read_node(written("core_mem", gpus))
    assert (offer.mode, offer.withheld) == ("core_mem", "")
    assert [gpu.held for gpu in offer.gpus.values()] == [0, 2]
    assert read_known_gpus(written("core_mem", gpus)) == gpus


def test_nothing_is_written_where_all_is_as_wanted() -> None:
    gpus = compute_facts("core_mem", seen(0, 1), (), (), {})
    item, wanted = written("core_mem", gpus), compute_node_resources("core_mem", gpus, NAMES)
    assert metadata_patch(item, wanted) == {}
    assert status_patch(item, wanted) == {}
    item["status"]["capacity"]["aliyun.com/gpu-core.percentage"] = "0.2k"  # the same number
    assert status_patch(item, wanted) == {}


def others(label: str) -> dict[str, Any]:
    """A node on which others have written what an agent could have."""
    item = written("core_mem", compute_facts("core_mem", seen(0), (), (), {}))
    item["metadata"]["labels"]["ack.node.gpu.schedule"] = label
    del item["metadata"]["annotations"]
    return item


@pytest.mark.parametrize("label", ["mps", "mig", "default", "disabled", "cgup"])
def test_what_others_have_written_is_theirs(label: str) -> None:
    assert metadata_patch(others(label), NOTHING) == {}
    assert status_patch(others(label), NOTHING) == {}
    assert status_patch(others(label), NOTHING, ours=True) != {}


def test_what_is_no_longer_offered_is_removed() -> None:
    item = written("core_mem", compute_facts("core_mem", seen(0), (), (), {}))
    status = status_patch(item, NOTHING)["status"]
    gone = {"aliyun.com/gpu-mem": None, "aliyun.com/gpu-core.percentage": None}
    assert status == {"capacity": gone, "allocatable": gone}
    patch = metadata_patch(item, NOTHING)["metadata"]
    assert patch["annotations"] == {"cgpu/gpus": None}
    assert set(patch["labels"].values()) == {None}


def test_a_kubelet_that_set_its_resources_to_0_gets_them_back() -> None:
    gpus = compute_facts("cgpu", seen(0), (), (), {})
    item = written("cgpu", gpus)
    item["status"]["allocatable"]["aliyun.com/gpu-mem"] = "0"
    patch = status_patch(item, compute_node_resources("cgpu", gpus, NAMES))
    assert patch == {"status": {"allocatable": {"aliyun.com/gpu-mem": "15"}}}


def test_a_lost_gpu_stays_without_new_pods_and_comes_back() -> None:
    both = compute_facts("cgpu", seen(0, 1), (), (), {})
    lost = compute_facts("cgpu", seen(0), both, {"GPU-0", "GPU-1"}, {})
    assert [gpu.healthy for gpu in lost] == [True, False]
    assert (
        compute_node_resources("cgpu", lost, NAMES).resources
        == compute_node_resources("cgpu", both, NAMES).resources
    )
    assert compute_facts("cgpu", seen(0, 1), lost, {"GPU-0", "GPU-1"}, {}) == both
    assert compute_facts("cgpu", seen(0), lost, {"GPU-0"}, {}) == both[:1]


def test_gpus_are_known_by_uuid_when_a_reboot_numbers_them_anew() -> None:
    before = compute_facts("cgpu", [*seen(0), DriverGpu("GPU-1", 1, "T4", 15109)], (), (), {})
    after = compute_facts(
        "cgpu", [DriverGpu("GPU-1", 0, "T4", 15109)], before, {"GPU-0", "GPU-1"}, {}
    )
    text = compute_node_resources("cgpu", after, NAMES).annotations["cgpu/gpus"]
    found = {gpu.uuid: (gpu.index, gpu.healthy, gpu.mib) for gpu in read_facts(text).gpus}
    assert found == {"GPU-1": (0, True, 15109), "GPU-0": (1, False, V100)}


def test_what_others_than_pods_hold_is_taken_off() -> None:
    def living(name: str, mib: int, pod: str = "", weight: int = 1) -> Living:
        whose = PodContainer(pod, "default", pod, "main") if pod else None
        return Living(name, whose, {"GPU-0": mib}, {"GPU-0": mib}, weight)

    everyone = [
        living("docker", 1000, weight=4),
        living("session", 24),
        living("booked", 4000, "uid-1"),
        living("new", 4000, "uid-2"),
    ]
    assert sum_non_pod_usage(everyone, {"uid-1"}, {"docker", "booked"}) == {
        "GPU-0": NonPodUsage(1024, 5)
    }
    deleted = [*everyone, living("forgotten", 1000, "uid-3")]
    assert sum_non_pod_usage(deleted, {"uid-1"}, {"booked", "forgotten"}) == {
        "GPU-0": NonPodUsage(2024, 6)
    }


@pytest.mark.parametrize("mode", ["cgpu", "core_mem", "share"])
@pytest.mark.parametrize(
    ("by_others", "units", "slots"),
    [(NonPodUsage(1024, 4), 1, 4), (NonPodUsage(99999, 99), 15, 20)],
)
def test_no_more_is_held_than_there_is(
    mode: str, by_others: NonPodUsage, units: int, slots: int
) -> None:
    [fact] = compute_facts(mode, seen(0), (), (), {"GPU-0": by_others})
    assert fact.held == units
    assert fact.held_slots == (0 if mode == "share" else slots)  # which limits nobody's time


def test_time_that_others_were_promised_is_promised_to_no_pod() -> None:
    """A docker container of weight 4 has a fifth of the GPU's time, on a node that shares time."""
    gpus = compute_facts("core_mem", seen(0), (), (), {"GPU-0": NonPodUsage(1000, 4)})
    node_of = make_node_info(read_node(written("core_mem", gpus)))
    assert node_of.free_part(node_of.gpus["GPU-0"]) == Part(14, 80, 16)
    wanted = compute_node_resources("core_mem", gpus, NAMES)
    assert wanted.resources["aliyun.com/gpu-core.percentage"] == 100
