"""K8S-2: names that are near to ours are refused with what is meant, in both forms; others pass."""

from __future__ import annotations

from typing import Any

import pytest

from cgpu_k8s.guard.rules import Review
from cgpu_k8s.guard.webhooks import CONDITIONS, POLICIES
from cgpu_k8s.inspect.why import why, why_none
from cgpu_k8s.objects.misspelt import misspelt
from lab.kubernetes.cel import asked, both, created
from lab.kubernetes.manifests import CORE, COUNT, MEM, container, controller, of, pod

pytestmark = pytest.mark.unit

MEANT = {MEM: f"{MEM} in a container's limits", CORE: f"{CORE} in a container's limits",
         COUNT: f"the pod's label {COUNT}"}  # fmt: skip
NEAR = {
    MEM: "gpu-memory gpu_mem gpumem gpu.mem GPU-MEM gpu-Mem gup-mem gpu-mme gpu-em gpu-men gpus-mem"
    " gpu-mems gpu-mem-gib gpu_memory_mb vgpu-mem",
    CORE: "gpu-core gpu-cores gpu-core.percent gpu-core-percentage gpu_core.percentage gpu.core"
    " gpu-core.precentage gpu-percentage gpu-corepercentage gpu-croe",
    COUNT: "gpu-counts gpu_count gpucount gpu-coutn gpu-cont gpu-num GPU-COUNT",
}
# What published tools use, and what anybody may: also of other domains.
FREE = """
aliyun.com/gpu aliyun.com/ppu aliyun.com/gpu0-util aliyun.com/mem0-util aliyun.com/gpu-type
aliyun.com/gpu1-processes aliyun.com/region aliyun.com/gpu-model aliyun.com/gpu-metrics
aliyun.com/gpu-mem.percentage aliyun.com/npu-core alibabacloud.com/gpu-memory
alibabacloud.com/gpu-count nvidia.com/gpumem ack.aliyun.com/gpu-memory example.com/gpu_mem
gpu-memory cpu
"""
ALL = [(near, ours) for ours, names in NEAR.items() for near in names.split()]


def noted(kind: str, name: str) -> Any:
    item = of({"name": "main"})
    item["metadata"][kind] = {"app": "x", name: "1"}
    return item


@pytest.mark.parametrize(("near", "ours"), ALL)
def test_a_resource_that_is_near_to_one_of_ours(near: str, ours: str) -> None:
    name = f"aliyun.com/{near}"
    sentence = f"{name}: there is no such resource: did you mean {MEANT[ours]}?"
    for item in (
        of(container({"cpu": "1", name: "3"})),
        of({"name": "a"}, container({MEM: "3"}, name="b"), container({name: "3"})),
    ):
        assert both(created(item)) == (f"container main: {sentence}",) * 2
    first = of(container({MEM: "3"}), init=[container({name: "3"}, name="first")])
    assert both(created(first)) == (f"container first: {sentence}",) * 2


@pytest.mark.parametrize(("near", "ours"), ALL)
@pytest.mark.parametrize("kind", ["label", "annotation"])
def test_a_label_or_annotation_that_is_near_to_one_of_ours(kind: str, near: str, ours: str) -> None:
    name = f"aliyun.com/{near}"
    sentence = f"{kind} {name}: there is no such {kind}: did you mean {MEANT[ours]}?"
    assert both(created(noted(f"{kind}s", name))) == (sentence, sentence)


@pytest.mark.parametrize("name", FREE.split())
def test_other_names_pass_and_no_guard_is_asked_about_them(name: str) -> None:
    for item in (of(container({name: "1"})), noted("labels", name), noted("annotations", name)):
        assert both(created(item)) == ("", "")
        assert asked(created(item), CONDITIONS) | asked(created(item), POLICIES) == set()


@pytest.mark.parametrize("name", [MEM, CORE, COUNT])
def test_our_own_names_are_not_misspelt(name: str) -> None:
    """Wherever they are; where they mean something, other rules look at the value."""
    for item in (of(container({name: "1"})), noted("labels", name), noted("annotations", name)):
        assert misspelt(item) == ""


def test_a_template_with_such_a_name_is_refused() -> None:
    item = of(container({"aliyun.com/gpu_mem": "3"}))
    made = controller("deployments", item)
    review = Review("CREATE", "deployments", "alice", made)
    assert all(both(review))
    made["metadata"] = {"name": "x", "namespace": "ml"}
    assert why_none("deploy", made, []) == (
        "deploy ml/x gets no pod: container main: aliyun.com/gpu_mem: there is no such resource:"
        f" did you mean {MEANT[MEM]}?"
    )


def test_a_pod_that_waits_says_so_and_one_that_runs_does_not() -> None:
    item = pod("p", 3)
    item["metadata"]["labels"]["aliyun.com/gpu-num"] = "2"
    assert why(item, None, [], [], []) == (
        "pod default/p waits: label aliyun.com/gpu-num: there is no such label: did you mean"
        f" {MEANT[COUNT]}?"
    )
    item["spec"]["nodeName"] = "gpu-a"
    assert "did you mean" not in why(item, None, [], [], [])
