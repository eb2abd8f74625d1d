"""K8S-15: the guard's rules say the same as CEL and in Python, for the same requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import celpy
import pytest
import yaml
from celpy import celtypes
from celpy.adapter import json_to_cel
from hypothesis import given
from hypothesis import strategies as st

from cgpu_k8s.guard.policies import EVENTS, policies, write_policies
from cgpu_k8s.guard.rules import Review, refusal
from cgpu_k8s.guard.settings import Settings
from cgpu_k8s.objects.quantities import whole
from lab.kubernetes.manifests import pod

pytestmark = pytest.mark.unit

SCHEDULER = "system:serviceaccount:cgpu-system:cgpu-scheduler"
SETTINGS = Settings((SCHEDULER,))
POLICIES = {each["metadata"]["name"]: each["spec"] for each in policies(SETTINGS)[::2]}
MEM, CORE, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "aliyun.com/gpu-count"


def _whole(value: Any) -> celtypes.IntType:
    """Kubernetes' ``asInteger`` of its ``quantity``."""
    number = whole(str(value))
    assert number is not None
    return celtypes.IntType(number)


FUNCTIONS = {"quantity": lambda value: value, "asInteger": _whole}
ENVIRONMENT = celpy.Environment()
PROGRAMS: dict[str, Any] = {}


def value_of(expression: str, context: dict[str, Any]) -> Any:
    if expression not in PROGRAMS:
        PROGRAMS[expression] = ENVIRONMENT.program(ENVIRONMENT.compile(expression), FUNCTIONS)
    return PROGRAMS[expression].evaluate(context)


def policy_of(review: Review) -> dict[str, Any] | None:
    """The policy that an API server applies to a request."""
    for spec in POLICIES.values():
        [rule] = spec["matchConstraints"]["resourceRules"]
        parts = {review.resource}
        parts |= {f"{review.resource.partition('/')[0]}/*"} if "/" in review.resource else set()
        if review.operation in rule["operations"] and parts & {*rule["resources"]}:
            return dict(spec)
    return None


def denied(review: Review) -> str:
    """What an API server with the policies says to a request; "": it lets it in."""
    spec = policy_of(review)
    if spec is None:
        return ""
    request = {"userInfo": {"username": review.user}}
    given = {"object": review.item, "oldObject": review.before or {}, "request": request}
    context = {name: json_to_cel(item) for name, item in given.items()}
    if not all(value_of(each["expression"], context) for each in spec.get("matchConditions", [])):
        return ""
    variables = celtypes.MapType()
    context["variables"] = variables
    for each in spec.get("variables", []):
        variables[celtypes.StringType(each["name"])] = value_of(each["expression"], context)
    for each in spec["validations"]:
        if not value_of(each["expression"], context):
            return str(each["message"])
    return ""


def both(review: Review) -> tuple[str, str]:
    """What each of the two forms says."""
    sentences = refusal(review, SETTINGS), denied(review)
    assert bool(sentences[0]) == bool(sentences[1]), sentences
    return sentences


def created(item: Any, user: str = "alice") -> Review:
    return Review("CREATE", "pods", user, item)


def container(limits: Any, requests: Any = None, name: str = "main") -> Any:
    resources = {"limits": limits} if limits is not None else {}
    resources |= {"requests": requests} if requests is not None else {}
    return {"name": name, "resources": resources}


def of(*containers: Any, label: str | None = None, init: Any = None, **spec: Any) -> Any:
    """A pod of these containers."""
    found = pod("p", 1)
    found["metadata"]["labels"] = {COUNT: label} if label is not None else {}
    found["spec"] |= {"containers": list(containers), **spec}
    return {**found, "spec": {**found["spec"], **({"initContainers": init} if init else {})}}


def asking(mem: str, core: str | None = None, label: str | None = None) -> Any:
    return of(container({MEM: mem, **({CORE: core} if core is not None else {})}), label=label)


def test_possible_pods_are_let_in_however_numbers_are_written() -> None:
    written = (asking("10", "1k", "10"), asking("1e3", label="0008"))
    for item in (pod("p", 3), pod("p", 2, 30), pod("p", 8, 100, count=2), *written):
        assert both(created(item)) == ("", "")
    plain = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main"}], "nodeName": "n"}}
    assert both(created(plain)) == ("", "")


BAD = {
    "core 33": asking("2", "33"),
    "core 0": asking("2", "0"),
    "core -5": asking("2", "-5"),
    "core 105": asking("2", "105"),
    "core 5 of two GPUs": asking("2", "5", "2"),
    "core 15 of two GPUs": asking("2", "15", "2"),
    "core 205 of two GPUs": asking("2", "205", "2"),
    "mem 0": asking("0"),
    "mem 1.5": asking("1500m"),
    "mem 8Gi": asking("8Gi"),
    "count 0": asking("2", label="0"),
    "count 17": asking("34", label="17"),
    "count two": asking("2", label="two"),
    "count empty": asking("2", label=""),
    "count 3 of 8": asking("8", label="3"),
    "count as a resource": of(container({COUNT: "1"})),
    "core without mem": of(container({CORE: "30"})),
    "requests differ": of(container({MEM: "3"}, {MEM: "2"})),
    "requests alone": of(container(None, {MEM: "2"})),
    "core in requests alone": of(container({MEM: "2"}, {CORE: "30"})),
    "whole GPUs too": of(container({MEM: "2", "nvidia.com/gpu": "1"})),
    "both modes": of(container({MEM: "2"}), container({MEM: "2", CORE: "30"}, name="other")),
    "in an init container": of(container({MEM: "2"}), init=[container({MEM: "0"}, name="init")]),
}


@pytest.mark.parametrize("name", BAD)
def test_what_no_gpu_could_give_is_refused_at_creation(name: str) -> None:
    assert all(both(created(BAD[name])))


AMOUNTS = st.sampled_from(
    ["0", "1", "2", "5", "10", "16", "30", "33", "100", "200", "1k", "1e3", "8Gi"]
)
ASKED = st.none() | st.dictionaries(
    st.sampled_from([MEM, CORE, COUNT, "nvidia.com/gpu", "cpu"]), AMOUNTS
)


@given(
    st.lists(st.tuples(ASKED, ASKED), min_size=1, max_size=3),
    st.lists(st.tuples(ASKED, ASKED), max_size=2),
    st.none() | st.sampled_from(["1", "2", "02", "16", "0", "17", "00016", "x", "-1"]),
    st.sampled_from(["cgpu-scheduler", "ack-co-scheduler", "default-scheduler"]),
    st.sampled_from(["", "gpu-a"]),
)
def test_both_forms_agree_on_every_pod(
    apps: Any, init: Any, label: str | None, scheduler: str, node: str
) -> None:
    named = [container(*each, name=f"c{n}") for n, each in enumerate(apps)]
    first = [container(*each, name=f"i{n}") for n, each in enumerate(init)]
    both(created(of(*named, label=label, init=first, schedulerName=scheduler, nodeName=node)))


def test_a_pod_that_asks_goes_to_a_scheduler_that_asks_cgpu() -> None:
    for spec in ({"schedulerName": "default-scheduler"}, {"nodeName": "gpu-a"}):
        item = pod("p", 2)
        item["spec"] |= spec
        assert all(both(created(item)))
        assert all(both(created(item, SCHEDULER)))
    own = Settings((SCHEDULER,), ("default-scheduler",))
    assert refusal(created(of(container({MEM: "2"}), schedulerName="default-scheduler")), own) == ""


RESERVED = [
    "cgpu/allocation",
    "scheduler.framework.gpushare.allocation",
    "gpushare.alibabacloud.com/core-percentage",
    "ALIYUN_COM_GPU_MEM_IDX",
]


def noted(**annotations: str) -> Any:
    item = pod("p", 2)
    item["metadata"]["annotations"] = annotations
    return item


def changes(name: str) -> Iterator[tuple[Any, Any]]:
    """A pod before and after somebody set, changed, emptied or removed an annotation."""
    yield noted(), noted(**{name: "{}"})
    yield noted(**{name: "1"}), noted(**{name: "2"})
    yield noted(**{name: "1"}), noted(**{name: ""})
    yield noted(**{name: "1"}), noted()
    bare = noted()
    del bare["metadata"]["annotations"]
    yield bare, noted(**{name: "1"})
    yield noted(**{name: "1"}), bare


@pytest.mark.parametrize("name", RESERVED)
def test_only_the_scheduler_writes_a_decision(name: str) -> None:
    forged = noted(**{name: "{}"})
    assert all(both(created(forged)))
    assert all(both(created(forged, SCHEDULER)))  # a binding is its only way
    for resource in ("pods/binding", "bindings"):
        binding = {"metadata": {"name": "p", "annotations": {name: "{}"}}, "target": {"name": "n"}}
        assert all(both(Review("CREATE", resource, "system:kube-scheduler", binding)))
        assert both(Review("CREATE", resource, SCHEDULER, binding)) == ("", "")
    for resource in ("pods", "pods/status", "pods/resize", "pods/ephemeralcontainers"):
        for before, after in changes(name):
            assert all(both(Review("UPDATE", resource, "alice", after, before))), (before, after)
            assert both(Review("UPDATE", resource, SCHEDULER, after, before)) == ("", "")


def test_anything_else_may_change_and_others_may_bind_other_pods() -> None:
    before, after = noted(mine="1", **{"cgpu/allocation": "x"}), noted(**{"cgpu/allocation": "x"})
    after["metadata"]["labels"] = {"any": "thing"}
    assert both(Review("UPDATE", "pods", "alice", after, before)) == ("", "")
    binding = {"metadata": {"name": "p"}, "target": {"name": "n"}}
    assert both(Review("CREATE", "pods/binding", "system:kube-scheduler", binding)) == ("", "")
    assert both(Review("CREATE", "pods/eviction", "alice", {"metadata": {}})) == ("", "")
    assert both(Review("DELETE", "pods", "alice", {})) == ("", "")


def test_each_policy_denies_and_is_whole() -> None:
    written = list(yaml.safe_load_all(write_policies(SETTINGS)))
    assert written == policies(SETTINGS)
    assert [each["metadata"]["name"] for each in written[::2]] == list(EVENTS)
    for policy, binding in zip(written[::2], written[1::2], strict=True):
        assert binding["spec"] == {
            "policyName": policy["metadata"]["name"],
            "validationActions": ["Deny"],
        }
        assert policy["spec"]["failurePolicy"] == "Fail"
        for check in policy["spec"]["validations"]:
            assert "\n" not in check["message"]
