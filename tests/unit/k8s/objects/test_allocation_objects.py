"""A decision in a pod's annotations: what nodes follow, and what published tools read.

K8S-2, K8S-4.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cgpu_env.errors import CgpuError
from cgpu_k8s.objects.allocations import Allocation, read_allocation, write_annotations
from cgpu_k8s.objects.gpus import CGPU, CORE_MEM, OfferedGpu
from cgpu_k8s.objects.nodes import SPREAD
from cgpu_k8s.objects.pods import Pod, read_pod
from cgpu_k8s.scheduler.allocation import NodeInfo, allocate_gpus

pytestmark = pytest.mark.unit

GPUS = {f"GPU-{n}": OfferedGpu(f"GPU-{n}", n, mib) for n, mib in enumerate((16160, 24576, 81920))}
NOW = 1_795_471_200_000_000_000


def limits(mem: int, core: int = 0) -> dict[str, Any]:
    asked = {"aliyun.com/gpu-mem": str(mem)}
    if core:
        asked["aliyun.com/gpu-core.percentage"] = str(core)
    return {"limits": asked}


def pod(*containers: Any, init: Any = (), count: int = 1) -> Any:
    return {
        "metadata": {
            "name": "p",
            "namespace": "ns",
            "uid": "0000-1111",
            "labels": {"aliyun.com/gpu-count": str(count)},
            "ownerReferences": [{"uid": "set", "controller": True}],
        },
        "spec": {"containers": list(containers), "initContainers": list(init)},
    }


def placed(given: Any) -> tuple[Pod, Allocation]:
    """A pod and what an empty node would give to it."""
    found = read_pod(given)
    assert found.request is not None
    mode = CORE_MEM if found.request.containers[0].cores else CGPU
    allocation = allocate_gpus(NodeInfo("n1", mode, SPREAD, GPUS.values()), found.request)
    assert isinstance(allocation, Allocation)
    return found, allocation


def bound(found: Pod, allocation: Allocation, **changes: Any) -> Pod:
    """The pod after its binding."""
    written = write_annotations(allocation, found, GPUS, NOW)
    return found._replace(node="n1", allocation_annotation=written["cgpu/allocation"])._replace(
        **changes
    )


def test_a_pod_of_2_gib_and_30_percent_has_2154_mib_of_a_v100() -> None:
    found = read_pod(pod({"name": "main", "resources": limits(2, 30)}))
    assert found.request is not None
    v100 = NodeInfo("n1", CORE_MEM, SPREAD, [GPUS["GPU-0"]])
    allocation = allocate_gpus(v100, found.request)
    assert isinstance(allocation, Allocation)
    written = write_annotations(allocation, found, GPUS, NOW)
    assert json.loads(written.pop("cgpu/allocation")) == {
        "v": 1,
        "pod": "0000-1111",
        "node": "n1",
        "containers": {"main": {"GPU-0": {"mem": 2154, "core": 30}}},
    }
    assert written == {
        "scheduler.framework.gpushare.allocation": '{"0":{"0":2}}',
        "scheduler.framework.gpushare.assigned": "true",
        "scheduler.framework.gpushare.assume-time": str(NOW),
        "gpushare.alibabacloud.com/core-percentage": '{"0":{"0":30}}',
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "ALIYUN_COM_GPU_MEM_DEV": "15",
        "ALIYUN_COM_GPU_MEM_POD": "2",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": str(NOW),
    }


def test_containers_and_gpus_are_numbered_for_published_tools_without_init_containers() -> None:
    found, allocation = placed(
        pod(
            {"name": "plain"},
            {"name": "main", "resources": limits(6)},
            init=[{"name": "first", "resources": limits(2)}],
            count=2,
        )
    )
    assert allocation.gpus == ("GPU-2", "GPU-1")
    written = write_annotations(allocation, found, GPUS, NOW)
    assert written["scheduler.framework.gpushare.allocation"] == '{"1":{"2":3,"1":3}}'
    assert "gpushare.alibabacloud.com/core-percentage" not in written
    assert written["ALIYUN_COM_GPU_MEM_IDX"] == "2,1"
    assert written["ALIYUN_COM_GPU_MEM_DEV"] == "80,24"
    assert written["ALIYUN_COM_GPU_MEM_POD"] == "6"
    assert json.loads(written["cgpu/allocation"])["containers"]["first"] == {
        "GPU-2": {"mem": 1024},
        "GPU-1": {"mem": 1024},
    }


def test_where_init_containers_alone_ask_tools_are_shown_the_pods_part() -> None:
    init = [{"name": "first", "resources": limits(2)}]
    found, allocation = placed(pod({"name": "main"}, init=init))
    written = write_annotations(allocation, found, GPUS, NOW)
    assert written["scheduler.framework.gpushare.allocation"] == '{"0":{"2":2}}'


CONTAINERS = st.lists(
    st.tuples(st.integers(1, 7), st.booleans(), st.sampled_from((None, "Always"))),
    min_size=1,
    max_size=4,
)


@given(CONTAINERS, st.integers(1, 3), st.integers(0, 4))
def test_what_a_binding_writes_is_read_as_the_same_decision(
    asked: list[tuple[int, bool, str | None]], count: int, cores: int
) -> None:
    listed = [
        {
            "name": f"c{n}",
            "resources": limits(mem * count, 5 * cores * count),
            "restartPolicy": policy,
            "init": init,
        }
        for n, (mem, init, policy) in enumerate(asked)
    ]
    first = [each for each in listed if each["init"]]
    apps = [each for each in listed if not each["init"]]
    found = read_pod(pod(*apps, init=first, count=count))
    assert found.request is not None
    mode = CORE_MEM if cores else CGPU
    node = NodeInfo("n1", mode, SPREAD, GPUS.values())
    allocation = allocate_gpus(node, found.request)
    assume(isinstance(allocation, Allocation))
    assert isinstance(allocation, Allocation)
    assert read_allocation(bound(found, allocation)) == allocation


def test_a_pod_without_annotation_or_without_need_has_nothing() -> None:
    found, allocation = placed(pod({"name": "main", "resources": limits(2)}))
    assert read_allocation(bound(found, allocation, allocation_annotation="")) is None
    assert read_allocation(bound(found, allocation, containers=())) is None


def changed(found: Pod, allocation: Allocation, **containers: Any) -> Pod:
    text = json.loads(bound(found, allocation).allocation_annotation)
    text["containers"] = containers
    return bound(found, allocation, allocation_annotation=json.dumps(text))


def test_an_annotation_that_is_not_for_the_pod_as_it_is_now_gives_it_nothing() -> None:
    found, allocation = placed(pod({"name": "main", "resources": limits(2, 30)}))
    more = {"name": "b", "resources": limits(2, 30)}
    two, of_two = placed(pod({"name": "a", "resources": limits(2, 30)}, more))
    cases = [
        (bound(found, allocation, uid="2222"), "pod=0000-1111: expected 2222"),
        (bound(found, allocation, node="n2"), "node=n1: expected n2"),
        (bound(found, allocation, node=""), "node=n1: expected none before the binding"),
        (bound(found, allocation, allocation_annotation="{"), "not JSON"),
        (changed(found, allocation, other={"GPU-0": {"mem": 1, "core": 30}}), "expected main"),
        (
            changed(
                found,
                allocation,
                main={f"GPU-{n}": {"mem": 1, "core": 30} for n in range(3)},
            ),
            "gpu-mem=2: expected a multiple of aliyun.com/gpu-count=3",
        ),
        (
            changed(found, allocation, main={"GPU-0": {"mem": 1, "core": 35}}),
            "containers.main.GPU-0.core=35: expected 30",
        ),
        (
            changed(
                two,
                of_two,
                a={"GPU-0": {"mem": 1, "core": 30}},
                b={"GPU-1": {"mem": 1, "core": 30}},
            ),
            "expected the same GPUs",
        ),
    ]
    for given_pod, sentence in cases:
        with pytest.raises(CgpuError, match="cgpu/allocation: ") as caught:
            read_allocation(given_pod)
        assert sentence in str(caught.value)


def test_a_label_that_changes_later_alters_nothing_that_a_pod_has() -> None:
    found, allocation = placed(pod({"name": "main", "resources": limits(6)}, count=2))
    assert read_allocation(bound(found, allocation, gpus=3)) == allocation
    assert (
        read_allocation(bound(found, allocation, refusal="label: expected a number")) == allocation
    )
