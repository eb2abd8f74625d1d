"""CUDA_VISIBLE_DEVICES as the driver reads it, and what a program finds (ENV-13)."""

from __future__ import annotations

import pytest

from cgpu_cli.running.visible import choose_uuids, set_variables
from cgpu_env import CgpuError, GpuShare
from cgpu_node.facts.node import Node, NodeGpu

pytestmark = pytest.mark.unit

UUIDS = [
    "GPU-aaaaaaaa-1111-2222-3333-444444444444",
    "GPU-aaaaaaaa-1112-2222-3333-444444444444",
    "GPU-bbbbbbbb-1111-2222-3333-444444444444",
    "GPU-33333333-1111-2222-3333-444444444444",
]
GPUS = tuple(NodeGpu(i, uuid, "T4", 1 << 34, 0, ()) for i, uuid in enumerate(UUIDS))
NODE = Node("1", "/nowhere", {}, {}, GPUS, ())
UNLIKE = NODE._replace(cuda_order=(UUIDS[2], UUIDS[0], UUIDS[3], UUIDS[1]))


def left(visible: str | None, gpus: str | None = None, node: Node = NODE, **more: str) -> list[int]:
    """The indices of the GPUs."""
    given = more if visible is None else {"CUDA_VISIBLE_DEVICES": visible, **more}
    return [UUIDS.index(uuid) for uuid in choose_uuids(given, node, gpus)]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("none", []),
        ("all", []),
        ("2,3", [2, 3]),
        ("3,0", [3, 0]),
        (" 3 ,\t0", [3, 0]),
        ("0,4,1", [0]),
        ("0,,1", [0]),
        ("0,-1,1", [0]),
        ("0,00001,1", [0]),
        ("0,1x", [0]),
        ("\u0663", []),
        ("1,1", []),
        ("1,GPU-aaaaaaaa-1112", []),
        ("GPU-3,gpu-B,0", [3, 2, 0]),
        ("GPU-aaaaaaaa,0", []),
        ("GPU-aaaaaaaa-1112", [1]),
        ("GPU-4", []),
        ("aaaaaaaa-1112", []),
    ],
)
def test_a_list_means_what_it_means_to_the_driver(visible: str | None, expected: list[int]) -> None:
    assert left(visible) == expected


@pytest.mark.parametrize(
    ("order", "visible", "expected"),
    [
        (None, "0,1", [2, 0]),
        ("FASTEST_FIRST", "3", [1]),
        ("PCI_BUS_ID", "0,1", [0, 1]),
        (None, "GPU-bbb,3", [2, 1]),
    ],
)
def test_numbers_count_the_gpus_in_the_order_of_cuda(
    order: str | None, visible: str, expected: list[int]
) -> None:
    more = {"CUDA_DEVICE_ORDER": order} if order else {}
    assert left(visible, node=UNLIKE, **more) == expected


@pytest.mark.parametrize(
    ("visible", "gpus", "expected"),
    [
        ("2,3", "all", [2, 3]),
        ("2,3", "3", [3]),
        ("2,3", "GPU-3,2", [3, 2]),
        (None, "3,0", [3, 0]),
        ("", "all", []),
    ],
)
def test_the_option_chooses_among_them(visible: str | None, gpus: str, expected: list[int]) -> None:
    assert left(visible, gpus) == expected


@pytest.mark.parametrize(
    ("visible", "gpus", "sentence"),
    [
        ("2,3", "2,1", "--gpus 2,1: CUDA_VISIBLE_DEVICES=2,3 leaves out GPU 1: expected GPUs that"),
        ("", "0", "--gpus 0: CUDA_VISIBLE_DEVICES= leaves out GPU 0: expected GPUs that it names"),
        ("2,3", "7", "ALIYUN_COM_GPU_VISIBLE_DEVICES=7: no GPU 7 here"),
        ("0,MIG-GPU-a/1/0", None, "CUDA_VISIBLE_DEVICES=MIG-GPU-a/1/0: cgpu-run shares whole GPUs"),
        ("mig-8f3a", None, "CUDA_VISIBLE_DEVICES=mig-8f3a: cgpu-run shares whole GPUs"),
    ],
)
def test_what_would_be_more_than_the_user_has_is_refused(
    visible: str, gpus: str | None, sentence: str
) -> None:
    """ENV-9."""
    with pytest.raises(CgpuError) as refusal:
        left(visible, gpus)
    assert str(refusal.value).startswith(sentence)


def test_a_program_finds_numbers_of_nvml() -> None:
    """A server's own numbers may be others."""
    environment = {"CUDA_VISIBLE_DEVICES": UUIDS[3], "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    set_variables(environment, [GpuShare(7, UUIDS[3], 1), GpuShare(5, UUIDS[0], 1)], UNLIKE)
    assert environment == {"CUDA_VISIBLE_DEVICES": "3,0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize("given", ["", "-1", "NoDevFiles"])
def test_a_list_without_a_gpu_stays_as_it_is(given: str) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": given}
    set_variables(environment, (), NODE)
    assert environment == {"CUDA_VISIBLE_DEVICES": given}
