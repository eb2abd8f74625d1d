"""K8S-7: ``kubectl inspect cgpu`` prints the published format to the byte.

The golden files are what documents show and what follows from the published rules; no program made
them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cgpu_k8s.inspect.cluster import NodeView, make_views, read_gpu_pod, read_node_facts
from cgpu_k8s.inspect.columns import align_columns
from cgpu_k8s.inspect.document import FORMATS, make_document
from cgpu_k8s.inspect.text import CORES, MEMORY, choose_unit, format_details, format_summary
from lab.kubernetes.manifests import V100, bound, decided, gpus, node, pod, published_node

pytestmark = pytest.mark.unit

GOLDEN = Path(__file__).parent / "golden"
A, B, C = (gpus(name, V100, V100) for name in "abc")
A0, A1 = A
B0, B1 = B


def shown(nodes: list[Any], pods: list[Any]) -> list[NodeView]:
    """What the program has of these objects."""
    gpu_pods = filter(None, map(read_gpu_pod, pods))
    return make_views(map(read_node_facts, nodes), gpu_pods)


def one(name: str, index: int, to: str, units: int, **more: str) -> Any:
    """A pod that a tool of the older generation has placed."""
    return bound(pod(name, units), to, ALIYUN_COM_GPU_MEM_IDX=str(index), **more)


def framework(name: str, to: str, units: int, allocation: str) -> Any:
    """A pod that a tool of the younger generation has placed."""
    notes = {"scheduler.framework.gpushare.allocation": allocation}
    return bound(pod(name, units), to, **notes)


def ours(name: str, units: int, *uuids: str, cores: int = 0, namespace: str = "default") -> Any:
    """A pod that cgpu has placed, on GPUs of the nodes a, b or c."""
    facts = A | B | C
    to = f"gpu-{uuids[0][4]}"
    asked = pod(name, units, cores, count=len(uuids), namespace=namespace)
    return decided(asked, to, facts, *uuids)


def whole(name: str, *uuids: str) -> Any:
    """A pod with whole GPUs of the node a."""
    asked = pod(name, 1)
    limits = {"aliyun.com/gpu": str(len(uuids))}
    asked["spec"]["containers"][0]["resources"]["limits"] = limits
    return decided(asked, "gpu-a", A, *uuids)


def test_cos_8_whole_gpus_are_shown_with_all_their_memory() -> None:
    """COS-8; before a pod has one, too."""
    nodes = [node("gpu-a", A, "topology"), node("gpu-b", B)]
    [view, _] = shown(nodes, [whole("train", A1), ours("part", 2, B0)])
    assert [(gpu.allocated.units, gpu.total.units) for gpu in view.gpus.values()] == [
        (0, 15),
        (15, 15),
    ]
    assert view.pods[0].shares == {1: (15, 0)}
    assert "gpu-a  127.0.0.1  0/15                   15/15" in format_summary([view], MEMORY)
    [view, _] = shown(nodes, [])
    assert view.allocated.units == 0
    theirs = node("theirs", {}, "default")
    theirs["status"]["capacity"] = {"aliyun.com/gpu": "8"}
    assert shown([theirs], []) == []


PENDING_B = [
    ours("two", 2, B0, namespace="kube-system"),
    ours("five", 5, B0, namespace="kube-system"),
    ours("six", 6, B1, namespace="kube-system"),
]
PENDING_B[0]["metadata"]["annotations"].clear()
TIMED = [
    *(ours(name, 2, A0, cores=30) for name in "abc"),
    ours("d", 2, A1, cores=30),
]
UNEVEN = gpus("big", V100, V100, 81920)
del UNEVEN["GPU-big-1"]
MIB = {"i-2ze0gl97vw1": (72, 7606), "i-2ze0gl97vw2": (73, 3803), "i-2ze0gl97vw3": (71, 7606)}
TEXTS: dict[str, Callable[[], str]] = {
    "summary-documented": lambda: format_summary(
        shown([published_node("cn-zhangjiakou.192.168.66.139", 15, 1, "192.168.66.139")], []),
        MEMORY,
    ),
    "summary-documented-two-gpus": lambda: format_summary(
        shown([published_node("cn-shanghai.192.168.0.4", 14, 2, "192.168.0.4")], []), MEMORY
    ),
    "summary-pending": lambda: format_summary(
        shown(
            [node("gpu-c", C), node("gpu-b", B), node("gpu-a", A), published_node("cpu", 0, 0)],
            [ours("p", 12, A0), ours("q", 4, A1), *PENDING_B, pod("unbound", 9)],
        ),
        MEMORY,
    ),
    "summary-uneven": lambda: format_summary(
        shown(
            [node("node-big", UNEVEN), node("n", gpus("n", 24576), address="")],
            [
                decided(pod("p", 79), "node-big", UNEVEN, "GPU-big-2"),
                decided(pod("q", 8), "n", gpus("n", 24576), "GPU-n-0"),
            ],
        ),
        MEMORY,
    ),
    "summary-mib": lambda: format_summary(
        shown(
            [published_node(name, 7606, 1, f"192.168.0.{at}") for name, (at, _) in MIB.items()],
            [one(name, 0, name, units) for name, (_, units) in MIB.items()],
        ),
        MEMORY,
    ),
    "summary-empty": lambda: format_summary(shown([published_node("cpu", 0, 0)], []), MEMORY),
    "summary-core": lambda: format_summary(
        shown([node("gpu-a", A, "core_mem"), node("b", B)], TIMED), CORES
    ),
    "details-documented": lambda: format_details(
        shown(
            [published_node("cn-hangzhou.192.168.2.167", 15, 1, "192.168.2.167")],
            [one(f"app-3g-v1-{n}", 0, "cn-hangzhou.192.168.2.167", 4) for n in (1, 0)],
        ),
        MEMORY,
    ),
    "details-two-nodes": lambda: format_details(
        shown(
            [
                published_node("10.0.33.21", 77, 7, "10.0.33.21"),
                published_node("10.0.20.250", 88, 4, "10.0.20.250"),
            ],
            [framework("binpack-1-767bddd4b5-gzqk7", "10.0.20.250", 1, '{"0":{"0":1}}')],
        ),
        MEMORY,
    ),
    "details-pending": lambda: format_details(shown([node("gpu-b", B)], PENDING_B), MEMORY),
    "details-two-gpus": lambda: format_details(
        shown(
            [node("gpu-a", A, address="")],
            [ours("one-with-a-name", 3, A1), ours("train", 16, A0, A1, namespace="ml")],
        ),
        MEMORY,
    ),
    "details-core": lambda: format_details(shown([node("gpu-a", A, "core_mem")], TIMED), CORES),
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_output_is_the_published_one_to_the_byte(name: str) -> None:
    assert TEXTS[name]() == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


def test_each_golden_file_is_compared() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(TEXTS)


@pytest.mark.parametrize(("units", "expected"), [(100, "GiB"), (101, "MiB")])
def test_more_than_100_units_of_a_gpu_are_mib(units: int, expected: str) -> None:
    [found] = shown([published_node("a", units, 1)], [])
    assert choose_unit([found]) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # As the examples of Go's package show: what follows the last tab is in no column.
        (
            "a\tb\tc\naa\tbb\tcc\naaa\t\naaaa\tdddd\teeee\n",
            "a     b   c\naa    bb  cc\naaa   \naaaa  dddd  eeee\n",
        ),
        ("a\tb\nlonger\n\nab\tc\n", "a  b\nlonger\n\nab  c\n"),
        ("\t\tx\n", "    x\n"),
        ("größe\tx\n12345\ty\n", "größe  x\n12345  y\n"),
    ],
)
def test_columns_are_as_wide_as_their_widest_cell_in_lines_that_follow_each_other(
    given: str, expected: str
) -> None:
    assert align_columns(given) == expected


def test_a_pod_of_ours_is_shown_by_uuid_also_where_its_gpu_has_another_index_now() -> None:
    swapped = {fact.uuid: fact._replace(index=1 - fact.index) for fact in A.values()}
    [found] = shown([node("gpu-a", swapped)], [ours("p", 5, A0)])
    assert [gpu.allocated.units for gpu in found.gpus.values()] == [0, 5]


def test_a_pod_whose_gpu_is_gone_is_pending_with_that_part() -> None:
    left = {A1: A[A1]}
    [found] = shown([node("gpu-a", left)], [ours("p", 6, A0), ours("q", 8, A0, A1)])
    assert found.gpus[1].allocated.units == 4
    assert [pod.pending.units for pod in found.pods] == [4, 6]
    assert found.allocated.units == 14


def test_on_a_node_that_nobody_described_a_pod_of_ours_is_shown_by_index() -> None:
    [found] = shown([published_node("gpu-a", 30, 2)], [ours("p", 5, A1)])
    assert [gpu.allocated.units for gpu in found.gpus.values()] == [0, 5]


@pytest.mark.parametrize(
    "notes",
    [
        {"scheduler.framework.gpushare.allocation": '{"0":{"0":2,"1":3},"1":{"1":1}}'},
        {"ALIYUN_COM_GPU_MEM_IDX": "0,1"},
    ],
)
def test_both_published_generations_may_name_several_gpus(notes: dict[str, str]) -> None:
    [found] = shown([published_node("n", 30, 2)], [bound(pod("p", 6, 40, count=2), "n", **notes)])
    by_hand = [2, 4] if "scheduler.framework.gpushare.allocation" in notes else [3, 3]
    assert [gpu.allocated.units for gpu in found.gpus.values()] == by_hand
    assert found.pending.units == 0


@pytest.mark.parametrize(
    "notes",
    [
        {"ALIYUN_COM_GPU_MEM_IDX": "-1"},
        {"ALIYUN_COM_GPU_MEM_IDX": "none"},
        {"ALIYUN_COM_GPU_MEM_IDX": "7"},
        {"scheduler.framework.gpushare.allocation": "{"},
        {"scheduler.framework.gpushare.allocation": '{"0":{"x":1}}'},
        {"scheduler.framework.gpushare.allocation": "[" * 100_000},
        {"cgpu/allocation": "{}", "ALIYUN_COM_GPU_MEM_IDX": "0"},
    ],
)
def test_a_pod_with_an_annotation_that_says_no_gpu_is_pending(notes: dict[str, str]) -> None:
    [found] = shown([node("gpu-a", A)], [bound(pod("p", 6), "gpu-a", **notes)])
    assert (found.pending.units, found.allocated.units) == (6, 6)


def test_pods_that_have_ended_and_pods_that_ask_for_nothing_are_not_shown() -> None:
    ended = ours("p", 6, A0)
    ended["status"]["phase"] = "Succeeded"
    other = bound(pod("q", 1), "gpu-a")
    other["spec"]["containers"][0]["resources"] = {}
    [found] = shown([node("gpu-a", A)], [ended, other])
    assert found.pods == ()


def test_a_request_that_no_gpu_of_ours_could_give_is_counted_as_others_count_it() -> None:
    odd = one("p", 0, "n", 4)
    odd["spec"]["containers"][0]["resources"]["limits"]["aliyun.com/gpu-core.percentage"] = "33"
    [found] = shown([published_node("n", 15, 1)], [odd])
    assert found.gpus[0].allocated == (4, 33)


def test_the_document_has_the_same_figures_in_both_forms() -> None:
    nodes = shown([node("gpu-a", A, "core_mem"), published_node("n", 141, 1)], TIMED)
    content = make_document(nodes, [], None)
    assert (
        json.loads(FORMATS["json"](content)) == yaml.safe_load(FORMATS["yaml"](content)) == content
    )
    assert (content["allocated"], content["total"], content["unit"]) == (8, 171, "GiB")
    first, other = content["nodes"]
    assert (first["mode"], first["allocated_cores"], first["total_cores"]) == ("core_mem", 120, 200)
    assert first["gpus"][0] == {
        "index": 0,
        "uuid": A0,
        "healthy": True,
        "held": 0,
        "held_cores": 0,
        "allocated": 6,
        "total": 15,
        "allocated_cores": 90,
        "total_cores": 100,
    }
    assert first["pods"][3]["gpus"] == [
        {"index": 1, "uuid": A1, "allocated": 2, "allocated_cores": 30}
    ]
    assert (other["mode"], other["gpus"][0]["uuid"], other["gpus"][0]["total"]) == (None, None, 141)
    assert other["withheld"] == "the node is not labelled for sharing GPUs"
