"""Whole GPUs: the ones with the best links, which nobody else has anything of. COS-6, COS-8."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpu_env.errors import CgpuError
from cgpu_k8s.objects.allocations import Allocation, read_allocation, write_annotations
from cgpu_k8s.objects.gpus import CGPU, TOPOLOGY, OfferedGpu, write_facts
from cgpu_k8s.objects.links import GpuLink
from cgpu_k8s.objects.nodes import BINPACK, SPREAD, read_node
from cgpu_k8s.objects.pod_request import WHOLE, ContainerRequest, PodRequest
from cgpu_k8s.objects.pods import read_pod
from cgpu_k8s.scheduler.allocation import (
    FULL,
    TOO_FEW,
    WRONG_MODE,
    Choice,
    NodeInfo,
    Refusal,
    allocate_gpus,
    select_node,
)
from cgpu_k8s.scheduler.cache import make_node_info
from cgpu_k8s.scheduler.topology import score_links, sum_within
from lab.worlds.allocation import pod as sharing

pytestmark = pytest.mark.unit

NVLINK, PCIE = GpuLink("s", 4), GpuLink("y")


def islands(*sizes: int) -> tuple[GpuLink, ...]:
    """The links of GPUs in islands of these sizes."""
    island = [number for number, size in enumerate(sizes) for _ in range(size)]
    return tuple(NVLINK if one == other else PCIE for one, other in combinations(island, 2))


def node(*sizes: int, placement: str = BINPACK, name: str = "node", **changes: Any) -> NodeInfo:
    gpus = [OfferedGpu(f"{name}-{n}", n, 80 << 10) for n in range(sum(sizes))]
    return NodeInfo(
        name, TOPOLOGY, placement, [gpu._replace(**changes) for gpu in gpus], islands(*sizes)
    )


def asking(uid: str, gpus: int) -> PodRequest:
    return PodRequest(uid, "", gpus, (ContainerRequest("main", 0, gpus=gpus),))


def give(where: NodeInfo, uid: str, gpus: int) -> list[int]:
    """The numbers of the GPUs that a pod gets; it keeps them."""
    found = allocate_gpus(where, asking(uid, gpus))
    assert isinstance(found, Allocation), found
    where.add(found)
    return [where.gpus[uuid].index for uuid in found.gpus]


def refusal(where: NodeInfo, request: PodRequest) -> Refusal:
    found = allocate_gpus(where, request)
    assert isinstance(found, Refusal)
    return found


def test_each_pair_of_two_islands_is_of_one_island() -> None:
    where = node(4, 4)
    pairs = [give(where, str(n), 2) for n in range(4)]
    assert all(max(pair) < 4 or min(pair) >= 4 for pair in pairs)
    assert sorted(gpu for pair in pairs for gpu in pair) == list(range(8))


def test_one_gpu_breaks_the_smaller_island() -> None:
    where = node(4, 2)
    assert give(where, "one", 1) == [4]
    assert give(where, "four", 4) == [0, 1, 2, 3]


@given(st.lists(st.integers(1, 4), min_size=8, max_size=8), st.data())
def test_no_gpu_is_given_twice_and_each_set_is_the_best_of_those_left(
    asked: list[int], data: st.DataObject
) -> None:
    links = tuple(
        GpuLink(data.draw(st.sampled_from("imsyn")), data.draw(st.integers(0, 4)))
        for _ in range(28)
    )
    gpus = [OfferedGpu(f"GPU-{n}", n, 80 << 10) for n in range(8)]
    where, free = NodeInfo("node", TOPOLOGY, BINPACK, gpus, links), set(range(8))
    scores = score_links(8, links)
    for number, count in enumerate(asked):
        if count > len(free):
            assert refusal(where, asking(str(number), count)).code == FULL
            continue
        found = give(where, str(number), count)
        assert set(found) <= free
        best = max(sum_within(scores, each) for each in combinations(sorted(free), count))
        assert sum_within(scores, sorted(found)) == best
        free -= set(found)
    for number in range(len(asked)):
        where.remove(str(number))
    assert give(where, "all", 8) == list(range(8))


def test_a_pod_goes_to_the_best_links_and_then_to_the_fullest_node_or_the_emptiest() -> None:
    def first(placement: str) -> str:
        nodes = {
            "apart": node(1, 1, 1, 1, name="apart", placement=placement),
            "empty": node(4, 4, name="empty", placement=placement),
            "fuller": node(4, 4, name="fuller", placement=placement),
        }
        give(nodes["fuller"], "there", 4)
        choices = {name: each.choose(asking("p", 2), WHOLE) for name, each in nodes.items()}
        return select_node({n: each for n, each in choices.items() if isinstance(each, Choice)})

    assert (first(BINPACK), first(SPREAD)) == ("fuller", "empty")


@pytest.mark.parametrize(
    ("where", "request_", "expected"),
    [
        (node(4), sharing("p", 2), (WRONG_MODE, "takes no pod without aliyun.com/gpu")),
        (node(4), sharing("p", 2, 30), (WRONG_MODE, "takes no pod without aliyun.com/gpu")),
        (NodeInfo("n", CGPU, BINPACK, []),
         asking("p", 1), (WRONG_MODE, "schedule=cgpu: the node takes no pod with aliyun.com/gpu")),
        (node(4), asking("p", 5), (TOO_FEW, "5 GPUs are asked for, 4 are here")),
        (node(2, held=1), asking("p", 1), (FULL, "no GPU is free as a whole, and 1 are")),
        (node(2, healthy=False), asking("p", 1), (TOO_FEW, "1 GPUs are asked for, 0 are here")),
    ],
)  # fmt: skip
def test_a_node_says_why_it_gives_no_whole_gpu(
    where: NodeInfo, request_: PodRequest, expected: tuple[str, str]
) -> None:
    code, sentence = refusal(where, request_)
    assert code == expected[0]
    assert expected[1] in sentence


def test_a_gpu_without_known_links_is_given_as_well() -> None:
    where = NodeInfo(
        "node", TOPOLOGY, BINPACK, [OfferedGpu(f"g{n}", n, 80 << 10) for n in range(3)]
    )
    assert give(where, "p", 2) == [0, 1]
    assert refusal(where, asking("q", 2)).sentence.startswith("only 1 GPU is free as a whole")


def pod(gpus: int) -> Any:
    limits = {"limits": {"aliyun.com/gpu": str(gpus)}}
    return {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u1"},
        "spec": {"containers": [{"name": "main", "resources": limits}, {"name": "log"}]},
    }


FACTS = {f"GPU-{n}": OfferedGpu(f"GPU-{n}", n, 81559) for n in range(4)}


def placed(gpus: int) -> tuple[dict[str, str], Any]:
    """The annotations of a pod with so many GPUs of a node of two islands, and the pod."""
    labels, facts = {"ack.node.gpu.schedule": TOPOLOGY}, FACTS.values()
    notes = {"cgpu/gpus": write_facts(TOPOLOGY, facts, links=islands(2, 2))}
    offer = read_node({"metadata": {"name": "n1", "labels": labels, "annotations": notes}})
    assert (offer.withheld, offer.mode, offer.links) == ("", TOPOLOGY, islands(2, 2))
    found = read_pod(pod(gpus))
    assert found.request is not None
    allocation = allocate_gpus(make_node_info(offer), found.request)
    assert isinstance(allocation, Allocation)
    return write_annotations(allocation, found, FACTS, 1), found


def test_a_node_with_links_that_is_withheld_offers_nothing() -> None:
    notes = {"cgpu/gpus": write_facts(TOPOLOGY, FACTS.values(), links=islands(2, 2))}
    labels = {"ack.node.gpu.schedule": CGPU}  # which is not in force yet
    offer = read_node({"metadata": {"name": "n1", "labels": labels, "annotations": notes}})
    assert "not in force yet" in offer.withheld
    assert make_node_info(offer).gpus == {}


def test_a_decision_names_all_of_each_gpu_and_shows_the_published_tools_which() -> None:
    notes, _ = placed(2)
    assert json.loads(notes.pop("cgpu/allocation")) == {
        "v": 1,
        "pod": "u1",
        "node": "n1",
        "containers": {"main": {"GPU-0": {"mem": 81559}, "GPU-1": {"mem": 81559}}},
    }
    assert notes == {"topology.kubernetes.io/gpu-visible": "0,1"}


def test_a_decision_is_read_back_and_one_of_another_number_is_refused() -> None:
    notes, found = placed(2)
    bound = found._replace(node="n1", allocation_annotation=notes["cgpu/allocation"])
    read = read_allocation(bound)
    assert read is not None
    assert read.gpus == ("GPU-0", "GPU-1")
    where = NodeInfo("n1", TOPOLOGY, BINPACK, FACTS.values())
    where.add(read)
    assert [where.used_part(uuid).units for uuid in where.gpus] == [79, 79, 0, 0]
    forged = placed(3)[0]["cgpu/allocation"]
    with pytest.raises(CgpuError, match=r"3 GPUs: expected 2, the pod's aliyun.com/gpu"):
        read_allocation(bound._replace(allocation_annotation=forged))
