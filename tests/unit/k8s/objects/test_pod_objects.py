"""What a pod asks for: every way to write it, and a sentence for every way to get it wrong.

K8S-2, K8S-4, COS-6.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpu_k8s.objects.fields import ObjectError
from cgpu_k8s.objects.pod_request import APP, INIT, SIDECAR, ContainerRequest, compute_pod_part
from cgpu_k8s.objects.pod_request import WHOLE as WHOLE_PART
from cgpu_k8s.objects.pods import read_pod
from cgpu_k8s.objects.quantities import parse_quantity

pytestmark = pytest.mark.unit

MEM, CORE, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "aliyun.com/gpu-count"
WHOLE = "aliyun.com/gpu"


def container(name: str = "main", requests: dict[str, Any] | None = None, **limits: Any) -> Any:
    """A container whose limits are named mem, core, count, whole or other."""
    names = {"mem": MEM, "core": CORE, "count": COUNT, "other": "nvidia.com/gpu", "cpu": "cpu"}
    names["whole"] = WHOLE
    resources: dict[str, Any] = {"limits": {names[key]: limits[key] for key in limits}}
    if requests is not None:
        resources["requests"] = {names[key]: requests[key] for key in requests}
    return {"name": name, "resources": resources}


def pod(*containers: Any, init: Any = None, count: str | None = None, **meta: Any) -> Any:
    labels = {"app": "x", **({COUNT: count} if count is not None else {})}
    return {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u1", "labels": labels, **meta},
        "spec": {"containers": list(containers), "initContainers": init},
        "status": {"phase": "Pending"},
    }


def refusal(asked: Any) -> str:
    found = read_pod(asked).refusal
    assert found
    assert "\n" not in found
    return found


def test_the_published_examples_ask_for_3_gib_and_for_2_with_30_percent() -> None:
    request = read_pod(pod(container(mem="3"))).request
    assert request is not None
    assert (request.pod, request.gpus, request.containers) == (
        "u1",
        1,
        (ContainerRequest("main", 3),),
    )
    request = read_pod(pod(container(mem="2", core="30"))).request
    assert request is not None
    assert request.containers == (ContainerRequest("main", 2, 30),)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3", 3), (3, 3), ("3e0", 3), ("+3", 3), ("3.0", 3), ("3.", 3), ("03", 3), ("3000m", 3),
        ("0.03E2", 3), ("30e-1", 3), ("1k", 1000), ("2.5k", 2500), ("-3", -3), ("0", 0),
        ("1.5", None), ("8Gi", None), ("8G", None), ("8Ki", None), ("", None), ("e3", None),
        (".", None), ("3 ", None), ("0x3", None), ("٣", None), ("1e999", None), ("1_0", None),
        ("9" * 99, None), ("1e20", None), (10**19, None), (True, None), (None, None),
        (3.0, None), ("NaN", None), ("inf", None),
        ("1500m", None), ("3e", None), ("3\n", None),
    ],
)  # fmt: skip
def test_a_quantity_is_a_whole_number_in_any_of_its_forms_or_none(
    text: object, number: int | None
) -> None:
    assert parse_quantity(text) == number


@given(st.integers(-(10**12), 10**12), st.integers(0, 9))
def test_a_whole_number_reads_the_same_in_every_form(number: int, shift: int) -> None:
    forms = (f"{number}", f"{number}000m", f"{number}.000", f"{number * 10**shift}e-{shift}")
    assert {parse_quantity(form) for form in forms if len(form) < 20} == {number}


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (pod(container(mem="1.5")), f"container main: {MEM}=1.5: expected a whole number"),
        (pod(container(mem="8Gi")), f"container main: {MEM}=8Gi: expected a whole number"),
        (pod(container(mem="0")), f"{MEM}=0: expected at least 1"),
        (pod(container(mem="-2")), f"{MEM}=-2: expected at least 1"),
        (pod(container(mem="x" * 999)), "xxx...: expected"),
        (pod(container(mem="2", core="33")), f"{CORE}=33: expected a multiple of 5 from 5 to 100"),
        (pod(container(mem="2", core="0")), f"{CORE}=0: expected at least 5 of each GPU"),
        (pod(container(mem="2", core="-5")), f"{CORE}=-5: expected a multiple of 5 from 5 to 100"),
        (pod(container(mem="2", core="105")), "=105: expected a multiple of 5 from 5 to 100"),
        (pod(container(mem="2", core="7.5")), f"{CORE}=7.5: expected a whole number"),
        (pod(container(core="30")), f"{CORE} without {MEM}"),
        (pod(container(mem="2", other="1")), f"expected {MEM} or nvidia.com/gpu, not both"),
        (pod(container(mem="2", count="1")), f"{COUNT} is no resource to ask for"),
        (pod(container(requests={"mem": "2"})), f"{MEM} in requests only: expected in limits"),
        (
            pod(container(requests={"mem": "2"}, mem="3")),
            f"{MEM}=3 in limits and 2 in requests: expected the same",
        ),
        (pod(container(mem="8"), count="two"), f"label {COUNT}=two: expected a whole number"),
        (pod(container(mem="8"), count="0"), f"label {COUNT}=0: expected a whole number from 1"),
        (pod(container(mem="17"), count="17"), f"{COUNT}=17: expected a whole number from 1 to 16"),
        (pod(container(mem="8"), count="-1"), f"label {COUNT}=-1: expected"),
        (pod(container(mem="8"), count="\u0662"), f"label {COUNT}="),
        (pod(container(mem="8"), count="3"), f"{MEM}=8: expected a multiple of {COUNT}=3"),
        (pod(container(mem="8", core="15"), count="2"), "expected a multiple of 10 from 10 to 200"),
        (pod(container(mem="1", core="5"), container("b", mem="1")), "expected all or none"),
        (pod(container(), init=[container("first", mem="1.5")]), "container first:"),
        (pod(container(whole="0")), f"{WHOLE}=0: expected a whole number from 1 to 16"),
        (pod(container(whole="17")), f"{WHOLE}=17: expected a whole number from 1 to 16"),
        (pod(container(whole="x")), f"{WHOLE}=x: expected a whole number without a unit"),
        (pod(container(requests={"whole": "1"})), f"{WHOLE} in requests only: expected in limits"),
        (pod(container(whole="1", mem="2")), f"expected {WHOLE} or {MEM}, not both"),
        (pod(container(whole="1", core="5")), f"expected {WHOLE} or {CORE}, not both"),
        (pod(container(whole="1", other="1")), f"{WHOLE} or nvidia.com/gpu, not both"),
        (pod(container(whole="1"), container("b", whole="1")), f"{WHOLE} in one container"),
        (pod(container(whole="1"), container("b", mem="1")), f"nor {MEM} in others"),
    ],
)  # fmt: skip
def test_what_no_gpu_could_give_is_refused_in_one_sentence(asked: Any, sentence: str) -> None:
    assert sentence in refusal(asked)
    assert sentence in read_pod(asked).refusal
    assert read_pod(asked).request is None


def test_whole_gpus_are_asked_for_by_one_container_of_any_kind() -> None:
    expected = (ContainerRequest("main", 0, gpus=2),)
    for asked in (pod(container(whole="2"), {"name": "b"}), pod(container(whole="2"), count="two")):
        found = read_pod(asked).request
        assert found is not None
        assert (found.gpus, found.containers) == (2, expected)
        assert compute_pod_part(found) == WHOLE_PART
    first = read_pod(pod({"name": "a"}, init=[container("first", whole="1")])).request
    assert first is not None
    assert first.containers == (ContainerRequest("first", 0, kind=INIT, gpus=1),)


def test_pods_without_our_resources_ask_for_nothing() -> None:
    for asked in (pod(), pod({"name": "a"}), pod(container(cpu="1", other="2"), count="two")):
        assert read_pod(asked).request is None
        assert read_pod(asked).refusal == ""


def test_equal_requests_are_allowed_in_another_form() -> None:
    request = read_pod(pod(container(requests={"mem": "3e0", "cpu": "1"}, mem="3"))).request
    assert request is not None
    assert request.containers == (ContainerRequest("main", 3),)


def test_all_kinds_of_containers_count_in_the_order_in_which_they_start() -> None:
    stays = {**container("beside", mem="1"), "restartPolicy": "Always"}
    request = read_pod(
        pod(
            container("a", mem="4"),
            container("plain", cpu="1"),
            container("b", mem="2"),
            init=[container("first", mem="8"), stays],
            count="1",
        )
    ).request
    assert request is not None
    assert [(each.name, each.units, each.kind) for each in request.containers] == [
        ("first", 8, INIT),
        ("beside", 1, SIDECAR),
        ("a", 4, APP),
        ("b", 2, APP),
    ]


def test_the_controller_owns_the_pod_and_no_other_owner_does() -> None:
    owners = [{"uid": "other"}, {"uid": "set", "controller": True}]
    request = read_pod(pod(container(mem="1"), ownerReferences=owners)).request
    assert request is not None
    assert request.owner == "set"
    request = read_pod(pod(container(mem="1"), ownerReferences=owners[:1])).request
    assert request is not None
    assert request.owner == ""


@pytest.mark.parametrize(
    ("phase", "final"),
    [("Succeeded", True), ("Failed", True), ("Running", False), ("Pending", False), ("", False)],
)
def test_only_a_final_phase_ends_a_pod_not_its_deletion(phase: str, *, final: bool) -> None:
    leaving = pod(container(mem="1"), deletionTimestamp="2026-11-23T00:00:00Z")
    leaving["status"]["phase"] = phase
    assert read_pod(leaving).final == final


def test_a_pod_is_read_with_what_places_it() -> None:
    bound = pod(container("a", mem="1"), {"name": "b"}, annotations={"cgpu/allocation": "{}"})
    bound["spec"]["nodeName"] = "node-1"
    found = read_pod(bound)
    assert (found.uid, found.namespace, found.name, found.node) == ("u1", "ns", "p", "node-1")
    assert (found.apps, found.allocation_annotation) == (("a", "b"), "{}")


@pytest.mark.parametrize(
    "wrong",
    [
        {"metadata": []},
        {"spec": "x"},
        {"spec": {"containers": {}}},
        {"spec": {"containers": [1]}},
        {"spec": {"containers": [{"name": 3}]}},
        {"spec": {"containers": [{"name": "a", "resources": {"limits": 3}}]}},
        {"spec": {"nodeName": 3}},
        {"metadata": {"labels": {"a": 1}, "annotations": {"a": {}}}},
        {"metadata": {"uid": 7}},
    ],
)
def test_what_is_no_pod_is_refused_with_the_name_of_the_member(wrong: Any) -> None:
    with pytest.raises(ObjectError, match="expected"):
        read_pod(wrong)


def test_members_that_are_null_or_absent_are_empty() -> None:
    assert read_pod({"metadata": None, "spec": {"containers": None}}).request is None
    assert read_pod({}).uid == ""
