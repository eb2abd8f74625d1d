"""K8S-9, K8S-15: what the guard answers to AdmissionReviews, and to bodies that are none."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from cgpu_env.errors import CgpuError
from cgpu_k8s.admission.reviews import AdmissionRequest, mutate, read_review, validate
from cgpu_k8s.admission.settings import Settings
from lab.kubernetes.manifests import pod

pytestmark = pytest.mark.unit

SCHEDULER = "system:serviceaccount:cgpu-system:cgpu-scheduler"
AGENT = "system:serviceaccount:cgpu-system:cgpu-agent"
SETTINGS = Settings((SCHEDULER,), AGENT)
FORGED = {"cgpu/allocation": "{}"}


def body(item: Any, resource: str = "pods", operation: str = "CREATE", **more: Any) -> Any:
    """An AdmissionReview, as the API server sends it."""
    main, _, part = resource.partition("/")
    request = {
        "uid": "u-1",
        "resource": {"group": "", "version": "v1", "resource": main},
        "namespace": "ml",
        "name": "p",
        "operation": operation,
        "userInfo": {"username": "alice"},
        "object": item,
        "oldObject": None,
        **({"subResource": part} if part else {}),
    }
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {**request, **more},
    }


def asked(*words: Any, **more: Any) -> AdmissionRequest:
    return read_review(json.dumps(body(*words, **more)).encode())


def sentence(question: AdmissionRequest, found: Any = None) -> str:
    """Why a request is refused; "": it is let in."""
    answer = validate(question, SETTINGS, found)
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response = answer["response"]
    assert response["uid"] == "u-1"
    assert response["allowed"] is ("status" not in response)
    if response["allowed"]:
        return ""
    assert response["status"]["code"] == 403
    return str(response["status"]["message"])


def noted(notes: dict[str, str], **spec: Any) -> Any:
    item = pod("p", 2)
    item["metadata"]["annotations"] = notes
    item["spec"] |= spec
    return item


def binding(**notes: str) -> Any:
    return {"metadata": {"name": "p", "annotations": notes}, "target": {"name": "gpu-a"}}


def test_a_forged_decision_is_refused_on_every_way() -> None:
    forged, own = noted(FORGED), {"userInfo": {"username": SCHEDULER}}
    expected = "cgpu: annotation cgpu/allocation: only cgpu's scheduler may"
    assert sentence(asked(forged)) == f"{expected} set it"
    for resource in ("pods", "pods/status", "pods/ephemeralcontainers"):
        change = (forged, resource, "UPDATE")
        assert sentence(asked(*change, oldObject=noted({}))) == f"{expected} change it"
        assert not sentence(asked(*change, oldObject=noted({}), **own))
        assert not sentence(asked(*change, oldObject=forged))
    assert sentence(asked(binding(**FORGED), "pods/binding")) == f"{expected} set it"
    assert not sentence(asked(binding(**FORGED), "pods/binding", **own))


def test_a_pod_that_goes_around_the_scheduler_is_refused() -> None:
    assert "nodeName=gpu-a: expected none" in sentence(asked(noted({}, nodeName="gpu-a")))
    other = sentence(asked(noted({}, schedulerName="mine")))
    assert other.startswith("cgpu: schedulerName=mine: a pod that asks for aliyun.com/gpu-mem")
    assert not sentence(asked(pod("p", 2)))


@pytest.mark.parametrize("resource", ["pods/binding", "bindings"])
def test_only_the_scheduler_binds_a_pod_that_asks_for_gpus(resource: str) -> None:
    plain = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main"}]}}
    question = asked(binding(), resource)
    assert question.is_binding(SETTINGS)
    assert sentence(question, pod("p", 2)) == (
        "cgpu: pod ml/p asks for aliyun.com/gpu-mem or aliyun.com/gpu: only cgpu's scheduler may"
        " bind it, not alice"
    )
    assert not sentence(question, plain)
    assert not sentence(question)
    own = asked(binding(), resource, userInfo={"username": SCHEDULER})
    assert not own.is_binding(SETTINGS)
    assert not sentence(own, pod("p", 2))
    assert not asked(pod("p", 2)).is_binding(SETTINGS)


def test_a_binding_without_a_name_in_the_request_is_of_the_pod_that_it_names() -> None:
    assert asked(binding(), "bindings", name="").name == "p"


def patched(question: AdmissionRequest, settings: Settings = SETTINGS) -> dict[str, str]:
    """What the mutating webhook sets in a pod's spec."""
    response = mutate(question, settings)["response"]
    assert response["allowed"] is True
    assert ("patch" in response) == (response.get("patchType") == "JSONPatch")
    steps = json.loads(base64.b64decode(response.get("patch", base64.b64encode(b"[]"))))
    assert all(step["op"] == "add" for step in steps)
    return {step["path"]: step["value"] for step in steps}


def test_a_pod_that_asks_goes_to_our_scheduler_unless_it_names_one() -> None:
    ours = {"/spec/schedulerName": "cgpu-scheduler"}
    for name in ("", "default-scheduler"):
        assert patched(asked(noted({}, schedulerName=name))) == ours
        assert patched(asked(noted({}, schedulerName=name), dryRun=True)) == ours
    for name in ("ack-co-scheduler", "mine"):
        assert patched(asked(noted({}, schedulerName=name))) == {}
    wired = Settings((SCHEDULER,), AGENT, ("default-scheduler",))
    assert patched(asked(noted({}, schedulerName="default-scheduler")), wired) == {}


def test_a_runtime_class_is_set_where_the_cluster_has_one() -> None:
    settings = SETTINGS._replace(runtime_class="cgpu")
    assert patched(asked(pod("p", 2)), settings) == {"/spec/runtimeClassName": "cgpu"}
    assert patched(asked(noted({}, runtimeClassName="other")), settings) == {}


def test_nothing_else_is_changed() -> None:
    settings = SETTINGS._replace(runtime_class="cgpu")
    plain = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main"}]}}
    assert patched(asked(plain), settings) == {}
    for resource, operation in (("pods", "UPDATE"), ("pods/status", "UPDATE"), ("pods", "DELETE")):
        question = asked(noted({}, schedulerName=""), resource, operation)
        assert patched(question, settings) == {}


BAD: dict[str, bytes] = {
    "nothing": b"",
    "not JSON": b"{",
    "not UTF-8": b"\xff\xfe\xfd",
    "deep": b"[" * 100_000,
    "a list": b"[]",
    "another kind": json.dumps({**body({}), "kind": "Pod"}).encode(),
    "an old version": json.dumps({**body({}), "apiVersion": "admission.k8s.io/v1beta1"}).encode(),
    "no request": json.dumps({**body({}), "request": None}).encode(),
    "request is a list": json.dumps({**body({}), "request": []}).encode(),
    "no uid": json.dumps(body({}, uid="")).encode(),
    "object is a string": json.dumps(body("x")).encode(),
    "user is a number": json.dumps(body({}, userInfo={"username": 1})).encode(),
    "resource is a string": json.dumps(
        {**body({}), "request": {"uid": "u", "resource": "pods"}}
    ).encode(),
    "metadata is a list": json.dumps(body({"metadata": []})).encode(),
    "annotations are numbers": json.dumps(
        body({"metadata": {"annotations": {"cgpu/allocation": 1}}})
    ).encode(),
    "containers are strings": json.dumps(body({"spec": {"containers": ["x"]}})).encode(),
}


@pytest.mark.parametrize("name", BAD)
def test_a_body_that_is_no_review_is_refused_in_one_sentence(name: str) -> None:
    with pytest.raises(CgpuError) as caught:
        validate(read_review(BAD[name]), SETTINGS)
    assert "\n" not in str(caught.value)
