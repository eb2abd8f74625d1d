"""K8S-2: names that are near to ours are refused with what is meant, in both forms; others pass."""

from __future__ import annotations

from typing import Any

import pytest

from cgpu_k8s.admission.rules import Review
from cgpu_k8s.admission.webhooks import CONDITIONS, POLICIES
from cgpu_k8s.inspect.cluster import read_gpu_pod
from cgpu_k8s.inspect.why import explain_maker, explain_pod
from cgpu_k8s.objects.misspelt import find_miscounted, find_misspelt
from lab.kubernetes.cel import asked, both, created
from lab.kubernetes.manifests import CORE, COUNT, MEM, WHOLE, container, controller, of, pod

pytestmark = pytest.mark.unit

MEANT = {MEM: f"{MEM} in a container's limits", CORE: f"{CORE} in a container's limits",
         COUNT: f"the pod's label {COUNT}", WHOLE: f"{WHOLE} in a container's limits"}  # fmt: skip
NEAR = {
    MEM: "gpu-memory gpu_mem gpumem gpu.mem GPU-MEM gpu-Mem gup-mem gpu-mme gpu-em gpu-men gpus-mem"
    " gpu-mems gpu-mem-gib gpu_memory_mb vgpu-mem",
    CORE: "gpu-core gpu-cores gpu-core.percent gpu-core-percentage gpu_core.percentage gpu.core"
    " gpu-core.precentage gpu-percentage gpu-corepercentage gpu-croe",
    COUNT: "gpu-counts gpu_count gpucount gpu-coutn gpu-cont gpu-num GPU-COUNT",
    WHOLE: "gpus GPU gup pgu",
}
# What published tools use, and what anybody may: also of other domains.
FREE = """
aliyun.com/gpu-error aliyun.com/gpu-errors aliyun.com/gpu-ecc aliyun.com/gpu-roce aliyun.com/gpu-rec
aliyun.com/gpu-corr aliyun.com/gpu-percentile aliyun.com/gpu-core-pool aliyun.com/gpu-core.policy
aliyun.com/gpu-core-pinning aliyun.com/gpu-core-priority aliyun.com/gpu-memfree
aliyun.com/gpu-memused aliyun.com/gpu-memtotal aliyun.com/gpu-memutil aliyun.com/gpu-memclock
aliyun.com/gpu-memtype aliyun.com/gpu-met aliyun.com/gpu-conn aliyun.com/gpu-core-clock
aliyun.com/ppu aliyun.com/gpu0-util aliyun.com/mem0-util aliyun.com/gpu-type
aliyun.com/gpu1-processes aliyun.com/region aliyun.com/gpu-model aliyun.com/gpu-metrics
aliyun.com/gpu-mem.percentage aliyun.com/npu-core alibabacloud.com/gpu-memory
alibabacloud.com/gpu-count nvidia.com/gpumem ack.aliyun.com/gpu-memory example.com/gpu_mem
gpu-memory cpu
"""
ALL = [(near, ours) for ours, names in NEAR.items() for near in names.split()]


STRAY = {"name": "main"}
ASKING = {MEM: "3"}, {MEM: "3", CORE: "30"}


def noted(kind: str, name: str, of_what: Any = STRAY) -> Any:
    item = of(of_what)
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


@pytest.mark.parametrize("near", NEAR[COUNT].split())
@pytest.mark.parametrize("kind", ["label", "annotation"])
@pytest.mark.parametrize("limits", ASKING)
def test_a_label_or_annotation_near_to_the_number_of_gpus(
    limits: Any, kind: str, near: str
) -> None:
    name = f"aliyun.com/{near}"
    sentence = f"{kind} {name}: there is no such {kind}: did you mean {MEANT[COUNT]}?"
    item = noted(f"{kind}s", name, container(limits))
    item["spec"]["schedulerName"] = "cgpu-scheduler"
    assert both(created(item)) == (sentence, sentence)


@pytest.mark.parametrize(("near", "ours"), ALL)
@pytest.mark.parametrize("kind", ["labels", "annotations"])
def test_all_others_are_free_and_all_of_pods_that_ask_for_nothing(
    kind: str, near: str, ours: str
) -> None:
    """A guard that is away stops none of these."""
    item = noted(kind, f"aliyun.com/{near}")
    made = Review("CREATE", "deployments", "alice", controller("deployments", item))
    for review in (created(item), made):
        assert both(review) == ("", "")
        assert asked(review, CONDITIONS) | asked(review, POLICIES) == set()
    if ours != COUNT:
        for limits in ASKING:
            assert both(created(noted(kind, f"aliyun.com/{near}", container(limits)))) == ("", "")


@pytest.mark.parametrize("name", FREE.split())
def test_other_names_pass_and_no_guard_is_asked_about_them(name: str) -> None:
    for kind in ("labels", "annotations"):
        assert both(created(noted(kind, name, container({MEM: "3"})))) == ("", "")
    for item in (of(container({name: "1"})), noted("labels", name), noted("annotations", name)):
        assert both(created(item)) == ("", "")
        assert asked(created(item), CONDITIONS) | asked(created(item), POLICIES) == set()


@pytest.mark.parametrize("name", [MEM, CORE, COUNT, WHOLE])
def test_our_own_names_are_not_misspelt(name: str) -> None:
    """Wherever they are; where they mean something, other rules look at the value."""
    notes = (noted(kind, name, container({MEM: "3"})) for kind in ("labels", "annotations"))
    for item in (of(container({name: "1"})), *notes):
        assert find_misspelt(item) + find_miscounted(item) == ""


def test_a_template_with_such_a_name_is_refused() -> None:
    item = of(container({"aliyun.com/gpu_mem": "3"}))
    made = controller("deployments", item)
    review = Review("CREATE", "deployments", "alice", made)
    assert all(both(review))
    made["metadata"] = {"name": "x", "namespace": "ml"}
    assert explain_maker("deploy", made, []) == (
        "deploy ml/x gets no pod: container main: aliyun.com/gpu_mem: there is no such resource:"
        f" did you mean {MEANT[MEM]}?"
    )


def test_a_pod_that_waits_says_so_and_one_that_runs_does_not() -> None:
    item = pod("p", 3)
    item["metadata"]["labels"]["aliyun.com/gpu-num"] = "2"
    assert sentence(item) == (
        "pod default/p waits: label aliyun.com/gpu-num: there is no such label: did you mean"
        f" {MEANT[COUNT]}?"
    )
    item["spec"]["schedulingGates"] = [{"name": "quota"}]
    assert "scheduling gates are removed: quota" in sentence(item)
    item["spec"]["nodeName"] = "gpu-a"
    assert "did you mean" not in sentence(item)


def test_a_pod_that_asks_for_nothing_else_says_so_of_its_resources_alone() -> None:
    item = of(container({"aliyun.com/gpu_mem": "3"}))
    assert "waits: container main: aliyun.com/gpu_mem: there is no such resource" in sentence(item)
    item["spec"]["nodeName"] = "gpu-a"
    for stray in (item, noted("labels", "aliyun.com/gpu-num")):
        assert "asks for no GPU" in sentence(stray)


def sentence(item: Any) -> str:
    """What --why answers about a pod."""
    return explain_pod(item, read_gpu_pod(item), [], [], [])
