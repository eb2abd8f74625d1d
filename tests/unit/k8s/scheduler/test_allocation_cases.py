"""Where the allocator puts pods that are named here, what it refuses, and a large cluster.

K8S-2, K8S-5, K8S-6.
"""

from __future__ import annotations

import random

import pytest

from cgpu_k8s.objects.allocations import Allocation
from cgpu_k8s.objects.gpus import CGPU, CORE_MEM, OfferedGpu
from cgpu_k8s.objects.nodes import BINPACK, SPREAD
from cgpu_k8s.objects.pod_request import (
    ContainerRequest,
    Part,
    PodRequest,
    PodRequestError,
    compute_pod_part,
)
from cgpu_k8s.scheduler.allocation import (
    FULL,
    MOST_ANSWERS,
    TOO_FEW,
    TOO_LARGE,
    WRONG_MODE,
    Choice,
    NodeInfo,
    Refusal,
    allocate_gpus,
    select_node,
)
from lab.worlds.allocation import filled, fitting_nodes, pod

pytestmark = pytest.mark.unit


def refusal(node: NodeInfo, asked: PodRequest) -> Refusal:
    found = allocate_gpus(node, asked)
    assert isinstance(found, Refusal)
    return found


def test_three_of_30_percent_fit_one_gpu_and_the_fourth_goes_to_the_next() -> None:
    node = NodeInfo(
        "node", CORE_MEM, BINPACK, [OfferedGpu("a", 0, 15 << 10), OfferedGpu("b", 1, 15 << 10)]
    )
    made = filled(node, [pod(str(n), 2, 30) for n in range(4)])
    assert [allocation.gpus for allocation in made] == [("a",), ("a",), ("a",), ("b",)]


@pytest.mark.parametrize(("units", "cores"), [(14, 5), (1, 85)])
def test_what_others_hold_is_promised_to_no_pod(units: int, cores: int) -> None:
    node = NodeInfo("node", CORE_MEM, BINPACK, [OfferedGpu("a", 0, 15 << 10, held=2, held_slots=4)])
    assert refusal(node, pod("p", units, cores)).code == FULL
    assert isinstance(allocate_gpus(node, pod("p", 13, 80)), Allocation)


def test_replicas_go_apart_while_there_are_gpus_without_one() -> None:
    node = NodeInfo(
        "node", CGPU, SPREAD, [OfferedGpu("a", 0, 15 << 10), OfferedGpu("b", 1, 12 << 10)]
    )
    made = filled(node, [pod(str(n), 2, owner="set") for n in range(3)])
    assert [allocation.gpus for allocation in made] == [("a",), ("b",), ("a",)]


def test_a_node_at_rest_remembers_no_more_however_many_controllers_ask() -> None:
    node = NodeInfo("node", CGPU, SPREAD, [OfferedGpu("a", 0, 15 << 10)])
    for n in range(1000):
        allocate_gpus(node, pod("p", 1, owner=str(n)))
        assert len(node._answers) <= MOST_ANSWERS  # noqa: SLF001 (a cache is no promise)


def test_pods_without_a_controller_are_no_replicas_of_each_other() -> None:
    node = NodeInfo(
        "node", CGPU, SPREAD, [OfferedGpu("a", 0, 15 << 10), OfferedGpu("b", 1, 12 << 10)]
    )
    made = filled(node, [pod(str(n), 1) for n in range(3)])
    assert [allocation.gpus for allocation in made] == [("a",), ("a",), ("a",)]


def test_what_one_controller_is_told_is_not_told_to_another() -> None:
    node = NodeInfo(
        "node", CGPU, SPREAD, [OfferedGpu("a", 0, 15 << 10), OfferedGpu("b", 1, 12 << 10)]
    )
    filled(node, [pod("first", 1, owner="set")])
    allocations = [allocate_gpus(node, pod("second", 1, owner=owner)) for owner in ("set", "other")]
    assert [each.gpus for each in allocations if isinstance(each, Allocation)] == [("b",), ("a",)]


@pytest.mark.parametrize(
    ("mode", "asked", "expected"),
    [
        (CORE_MEM, pod("p", 2), (WRONG_MODE, "takes no pod without aliyun.com/gpu-core")),
        (CGPU, pod("p", 2, 30), (WRONG_MODE, "takes no pod with aliyun.com/gpu-core")),
        (CGPU, pod("p", 6, gpus=3), (TOO_FEW, "3 GPUs are asked for, 2 are here")),
        (CGPU, pod("p", 16), (TOO_LARGE, "no GPU has 16 GiB of aliyun.com/gpu-mem in all")),
        (
            CGPU,
            pod("p", 24, gpus=2),
            (TOO_LARGE, "only 1 GPU has 12 GiB of aliyun.com/gpu-mem in all, and 2 are asked for"),
        ),
        (CGPU, pod("p", 9), (FULL, "no GPU has 9 GiB of aliyun.com/gpu-mem free")),
        (
            CORE_MEM,
            pod("p", 9, 5),
            (FULL, "no GPU has 9 GiB of aliyun.com/gpu-mem and 5 percent of its time free"),
        ),
    ],
)
def test_a_refusal_says_what_is_lacking(
    mode: str, asked: PodRequest, expected: tuple[str, str]
) -> None:
    node = NodeInfo(
        "node", mode, BINPACK, [OfferedGpu("a", 0, 15 << 10), OfferedGpu("b", 1, 8 << 10)]
    )
    node.add(Allocation("x", "", "node", ("a",), Part(7, 0, 1), {}))
    code, text = expected
    found = refusal(node, asked)
    assert found.code == code
    assert text in found.sentence


@pytest.mark.parametrize(
    ("containers", "gpus", "text"),
    [
        (
            [ContainerRequest("main", 8)],
            0,
            "aliyun.com/gpu-count=0: expected a whole number from 1",
        ),
        ([ContainerRequest("main", 8)], 3, "aliyun.com/gpu-mem=8: expected a multiple of"),
        ([ContainerRequest("main", 0)], 1, "aliyun.com/gpu-mem=0: expected at least 1"),
        (
            [ContainerRequest("main", 1, 33)],
            1,
            "percentage=33: expected a multiple of 5 from 5 to 100",
        ),
        (
            [ContainerRequest("main", 1, -5)],
            1,
            "percentage=-5: expected a multiple of 5 from 5 to 100",
        ),
        (
            [ContainerRequest("main", 1, 105)],
            1,
            "percentage=105: expected a multiple of 5 from 5 to 100",
        ),
        (
            [ContainerRequest("main", 2, 15)],
            2,
            "a multiple of 10 from 10 to 200, 5 to 100 of each of",
        ),
        (
            [ContainerRequest("a", 1, 30), ContainerRequest("b", 1)],
            1,
            "expected all or none to ask",
        ),
    ],
)
def test_what_no_gpu_could_give_is_refused_before_any_node_is_asked(
    containers: list[ContainerRequest], gpus: int, text: str
) -> None:
    with pytest.raises(PodRequestError, match=text.replace("%", ".")):
        compute_pod_part(PodRequest("p", "", gpus, tuple(containers)))


@pytest.mark.long
def test_ten_thousand_pods_on_a_thousand_nodes_have_no_unit_too_many() -> None:
    chance = random.Random(20261123)
    cluster = {
        f"n{n}": NodeInfo(
            f"n{n}",
            CGPU,
            BINPACK,
            [OfferedGpu(f"n{n}-{k}", k, (15 + (n + k) % 3) << 10) for k in range(8)],
        )
        for n in range(1000)
    }
    live: list[Allocation] = []
    for n in range(10_000):
        asked = pod(str(n), chance.choice((1, 2, 3, 5, 8, 12)))
        fitting: dict[str, Choice]
        fitting = fitting_nodes(cluster.values(), asked)
        node = cluster[select_node(fitting)]
        allocation = allocate_gpus(node, asked)
        assert isinstance(allocation, Allocation)
        node.add(allocation)
        live.append(allocation)
        if chance.random() < 0.2:
            gone = live.pop(chance.randrange(len(live)))
            cluster[gone.node].remove(gone.pod)
    taken: dict[str, int] = {}
    for allocation in live:
        for uuid in allocation.gpus:
            taken[uuid] = taken.get(uuid, 0) + allocation.part.units
    assert all(
        taken.get(uuid, 0) == node.used_part(uuid).units <= gpu.units
        for node in cluster.values()
        for uuid, gpu in node.gpus.items()
    )


def test_pods_of_3_gib_fill_gpus_of_15_one_after_the_other() -> None:
    cluster = {
        f"n{n}": NodeInfo(
            f"n{n}", CGPU, BINPACK, [OfferedGpu(f"n{n}-{k}", k, 15 << 10) for k in range(8)]
        )
        for n in range(100)
    }
    for n in range(500):
        fitting = fitting_nodes(cluster.values(), pod(str(n), 3))
        node = cluster[select_node(fitting)]
        allocation = allocate_gpus(node, pod(str(n), 3))
        assert isinstance(allocation, Allocation)
        node.add(allocation)
    assert (
        sum(node.used_part(uuid).units > 0 for node in cluster.values() for uuid in node.gpus)
        == 100
    )
