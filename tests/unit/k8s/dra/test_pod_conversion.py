"""Pods that ask by published resources claim the same after their conversion. DRA-6."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given

from cgpu_k8s.admission.reviews import AdmissionRequest, mutate
from cgpu_k8s.admission.rules import Review, find_refusal
from cgpu_k8s.admission.server import Guard
from cgpu_k8s.admission.settings import Settings
from cgpu_k8s.dra.conversion import convert_pod
from cgpu_k8s.dra.templates import (
    MOST_NAMES,
    ClaimShape,
    make_template,
    parse_template_name,
    shape_part,
)
from cgpu_k8s.objects.pod_request import APP, INIT, SIDECAR, PodRequest, compute_container_part
from cgpu_k8s.objects.pods import read_pod
from lab.kubernetes.manifests import CORE, COUNT, IMPOSSIBLE, MEM, WHOLE, container, of
from lab.worlds.allocation import requests

pytestmark = pytest.mark.unit

Json = dict[str, Any]
SETTINGS = Settings(("scheduler",), "agent", runtime_class="cgpu")
FREE: Json = {"schedulerName": "default-scheduler"}


def applied(item: Json) -> Json:
    """The pod after its conversion."""
    found = copy.deepcopy(item)
    for step in convert_pod(item):
        assert step["op"] == "add"
        *way, last = step["path"].split("/")[1:]
        at: Any = found
        for word in way:
            at = at[int(word)] if isinstance(at, list) else at[word]
        at[last] = step["value"]
    return found


def claims(item: Json) -> dict[str, list[str]]:
    """By container, the templates of its claims."""
    spec = applied(item)["spec"]
    templates = {
        each["name"]: each.get("resourceClaimTemplateName", "")
        for each in spec.get("resourceClaims", [])
    }
    return {
        each["name"]: [templates[claim["name"]] for claim in each["resources"].get("claims", [])]
        for each in (*spec.get("initContainers", []), *spec["containers"])
    }


def share(mem: int, core: int | None = None, name: str = "main", **more: Any) -> Json:
    limits = {MEM: str(mem), **({CORE: str(core)} if core else {})}
    return {**container(limits, limits, name), **more}


def mutated(item: Json) -> list[Json]:
    """The patch of the webhook that converts."""
    review = Review("CREATE", "pods", "alice", item)
    asked = AdmissionRequest("u", "ml", "p", review)
    response = mutate(asked, SETTINGS, convert_pod)["response"]
    assert response["allowed"]
    patch = json.loads(base64.b64decode(response.get("patch", base64.b64encode(b"[]"))))
    assert isinstance(patch, list)
    return patch


def test_a_share_becomes_a_claim_and_everything_else_stays() -> None:
    limits = {MEM: "6", CORE: "60", "cpu": "2"}
    item = of({**container(limits, limits), "image": "x"}, **FREE, restartPolicy="Never")
    found = applied(item)
    assert found["spec"] == {
        **FREE,
        "restartPolicy": "Never",
        "resourceClaims": [
            {"name": "cgpu-0", "resourceClaimTemplateName": "cgpu-mem-6144-core-60"}
        ],
        "containers": [
            {
                "name": "main",
                "image": "x",
                "resources": {
                    "limits": {"cpu": "2"},
                    "requests": {"cpu": "2"},
                    "claims": [{"name": "cgpu-0"}],
                },
            }
        ],
    }
    assert (found["metadata"], found["status"]) == (item["metadata"], item["status"])
    assert convert_pod(found) == []


@pytest.mark.parametrize(
    ("item", "template"),
    [
        (of(share(3), **FREE), "cgpu-mem-3072"),
        (of(share(8, 60), label="2", **FREE), "cgpu-mem-4096-core-30-count-2"),
        (of(share(8), label="4", **FREE), "cgpu-mem-2048-count-4"),
        (of(container({WHOLE: "1"}), **FREE), "cgpu-whole"),
        (of(container({WHOLE: "2"}), label="8", **FREE), "cgpu-whole-count-2"),
        (of(share(3), schedulerName=""), "cgpu-mem-3072"),
    ],
)
def test_the_template_is_named_by_the_part_of_each_gpu(item: Json, template: str) -> None:
    assert claims(item) == {"main": [template]}
    found = applied(item)
    assert found["spec"]["schedulerName"] == "default-scheduler"
    assert not read_pod(found).asks_for_gpu


def test_each_container_has_a_claim_of_its_own() -> None:
    item = of(share(2, name="a"), share(2, name="b"), container({"cpu": "1"}, name="c"), **FREE)
    assert claims(item) == {"a": ["cgpu-mem-2048"], "b": ["cgpu-mem-2048"], "c": []}
    found = applied(item)["spec"]["containers"]
    assert [each["resources"].get("claims") for each in found] == [
        [{"name": "cgpu-0"}],
        [{"name": "cgpu-1"}],
        None,
    ]


def test_an_init_container_has_a_claim_that_nobody_needs_yet() -> None:
    stays = share(2, name="sidecar", restartPolicy="Always")
    init = [share(4, name="early"), stays, share(2, name="same"), share(4, name="again"),
            share(2, name="later")]  # fmt: skip
    found = applied(of(share(4), init=init, **FREE))["spec"]
    by_name = {
        each["name"]: each["resources"]["claims"][0]["name"]
        for each in (*found["initContainers"], *found["containers"])
    }
    assert by_name["early"] == by_name["again"] == by_name["main"]
    assert by_name["same"] == by_name["later"]
    assert len({by_name[name] for name in ("main", "sidecar", "same")}) == 3
    assert len(found["resourceClaims"]) == 3


@given(requests())
def test_containers_that_run_together_have_claims_of_their_own_of_what_they_ask(
    request: PodRequest,
) -> None:
    init, apps = [], []
    for each in request.containers:
        made = share(each.units, each.cores, each.name)
        made |= {"restartPolicy": "Always"} if each.kind == SIDECAR else {}
        (apps if each.kind == APP else init).append(made)
    item = of(*apps, init=init, label=str(request.gpus), **FREE)
    found = applied(item)["spec"]
    templates = {
        each["name"]: each["resourceClaimTemplateName"] for each in found["resourceClaims"]
    }
    has = {
        each["name"]: each["resources"]["claims"][0]["name"]
        for each in (*found.get("initContainers", []), *found["containers"])
    }
    for each in request.containers:
        part = compute_container_part(each, request.gpus)
        assert parse_template_name(templates[has[each.name]]) == shape_part(part, request.gpus)
    stay = [each.name for each in request.containers if each.kind == SIDECAR]
    together = [[*stay, *(each.name for each in request.containers if each.kind == APP)]]
    together += [[*stay, each.name] for each in request.containers if each.kind == INIT]
    for names in together:
        assert len({has[name] for name in names}) == len(names)
    assert {*has.values()} == templates.keys()


def test_claims_that_a_pod_has_stay_and_names_of_theirs_are_not_taken() -> None:
    """As after another webhook that adds a container."""
    others = [{"name": "cgpu-0", "resourceClaimTemplateName": "cgpu-mem-1024"},
              {"name": "nic", "resourceClaimName": "mine"}]  # fmt: skip
    first = {"name": "first", "resources": {"claims": [{"name": "cgpu-0"}]}}
    second = share(3, name="second")
    second["resources"]["claims"] = [{"name": "nic", "request": "fast"}]
    found = applied(of(first, second, **FREE, resourceClaims=others))["spec"]
    assert found["resourceClaims"] == [
        *others,
        {"name": "cgpu-1", "resourceClaimTemplateName": "cgpu-mem-3072"},
    ]
    assert [each["resources"]["claims"] for each in found["containers"]] == [
        [{"name": "cgpu-0"}],
        [{"name": "nic", "request": "fast"}, {"name": "cgpu-1"}],
    ]


@pytest.mark.parametrize(
    "spec",
    [
        {"schedulerName": "cgpu-scheduler"},
        {"schedulerName": "mine"},
        {**FREE, "nodeName": "gpu-a"},
        {**FREE, "nodeSelector": {"ack.node.gpu.schedule": "core_mem"}},
    ],
)
def test_a_pod_that_wants_something_else_stays_as_it_is(spec: Json) -> None:
    assert convert_pod(of(share(3), **spec)) == []


def test_the_published_scheduler_is_the_clusters_own() -> None:
    spec: Json = {"schedulerName": "ack-co-scheduler",
                  "nodeSelector": {"ack.node.gpu.schedule": "dra"}}  # fmt: skip
    found = applied(of(share(3), **spec))["spec"]
    assert found["schedulerName"] == "default-scheduler"
    assert found["resourceClaims"]


def test_a_pod_of_a_group_stays_with_the_scheduler_that_knows_groups() -> None:
    item = of(share(3), **FREE)
    item["metadata"]["labels"] = {"gpu-topology": "bert", "gpu-topology-replica": "4"}
    assert convert_pod(item) == []


@pytest.mark.parametrize("gib", ["1000000000000000", "1048576", "976563"])
def test_a_pod_stays_that_asks_for_more_than_a_template_says(gib: str) -> None:
    assert convert_pod(of(container({MEM: "976562"}), **FREE))
    item = of(container({MEM: gib}), **FREE)
    assert convert_pod(item) == []
    assert [each["path"] for each in mutated(item)] == [
        "/spec/schedulerName",
        "/spec/runtimeClassName",
    ]


def test_a_pod_stays_that_needs_more_templates_than_are_made() -> None:
    most = [share(gib, name=f"c{gib}") for gib in range(1, MOST_NAMES + 1)]
    others = [{"name": "mine", "resourceClaimTemplateName": "cgpu-whole"}]
    again = share(1, name="again")
    assert len(convert_pod(of(*most, again, **FREE))) == len(most) + 2
    assert convert_pod(of(*most, **FREE, resourceClaims=others)) == []
    assert convert_pod(of(*most, share(MOST_NAMES + 1, name="more"), **FREE)) == []


def test_a_pod_without_gpus_stays_as_it_is() -> None:
    assert convert_pod(of(container({"cpu": "1"}), **FREE)) == []


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_is_refused_is_not_converted_and_still_refused(name: str) -> None:
    item = copy.deepcopy(IMPOSSIBLE[name])
    item["spec"]["schedulerName"] = "default-scheduler"
    refuse(item)


@pytest.mark.parametrize(
    "about",
    [
        {"labels": {"aliyun.com/gpu-counts": "2"}},
        {"annotations": {"cgpu/allocation": "{}"}},
        {"annotations": {"ALIYUN_COM_GPU_MEM_IDX": "0"}},
    ],
)
def test_a_refusal_about_what_a_converted_pod_would_hide_stays(about: Json) -> None:
    item = of(share(3), **FREE)
    item["metadata"] |= about
    assert convert_pod(item)
    refuse(item)


def test_a_misspelt_resource_beside_a_share_is_still_refused() -> None:
    refuse(of(share(3), container({"aliyun.com/gpu-memory": "3"}, name="b"), **FREE))


def refuse(item: Json) -> None:
    """The webhook gives it our scheduler alone, and then a rule refuses it."""
    patch = mutated(item)
    assert [each["path"] for each in patch] == ["/spec/schedulerName", "/spec/runtimeClassName"]
    item["spec"]["schedulerName"] = patch[0]["value"]
    assert find_refusal(Review("CREATE", "pods", "alice", item), SETTINGS)


def test_the_webhook_converts_a_pod_without_giving_it_a_runtime() -> None:
    item = of(share(3), **FREE)
    assert mutated(item) == convert_pod(item)
    ours = of(share(3), schedulerName="cgpu-scheduler")
    assert [each["path"] for each in mutated(ours)] == ["/spec/runtimeClassName"]


@pytest.mark.parametrize(("convert", "converted"), [(convert_pod, True), (None, False)])
def test_the_guards_server_converts_if_it_is_to(convert: Any, converted: bool) -> None:  # noqa: FBT001
    item = of(share(3), **FREE)
    request = {"uid": "u", "operation": "CREATE", "resource": {"resource": "pods"}, "object": item}
    body = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}

    async def work() -> str:
        nobody: Any = None
        guard = Guard(SETTINGS, nobody, lambda *_: None, lambda: ("word",), convert)
        async with TestClient(TestServer(guard.make_application())) as client:
            answer = await client.post("/word/mutate", json=body)
            return str((await answer.json())["response"]["patch"])

    assert ("resourceClaims" in base64.b64decode(asyncio.run(work())).decode()) is converted


def test_a_converted_pod_is_let_in_by_the_rules() -> None:
    item = applied(of(share(8, 60), label="2", **FREE))
    assert not find_refusal(Review("CREATE", "pods", "alice", item), SETTINGS)
    assert not read_pod(item).asks_for_gpu
    assert mutated(item) == []
    assert item["metadata"]["labels"] == {COUNT: "2"}


@pytest.mark.parametrize(
    "shape",
    [ClaimShape(1024), ClaimShape(4096, 30, 2), ClaimShape(81920, 100), ClaimShape(0, 0, 16)],
)
def test_a_name_says_all_of_a_shape(shape: ClaimShape) -> None:
    assert parse_template_name(shape.name) == shape


@pytest.mark.parametrize(
    "name",
    [
        "", "mine", "cgpu-mem", "cgpu-mem-0", "cgpu-mem-04096", "cgpu-mem-4096-core-0",
        "cgpu-mem-4096-core-33", "cgpu-mem-4096-core-105", "cgpu-mem-4096-count-1",
        "cgpu-mem-4096-count-17", "cgpu-mem-4096-count-2-core-30", "cgpu-whole-core-30",
        "cgpu-mem-4096-more", "xcgpu-whole", "cgpu-mem-1000", "cgpu-mem-1073741824",
    ],
)  # fmt: skip
def test_other_names_are_of_no_template_of_ours(name: str) -> None:
    assert parse_template_name(name) is None


def test_a_template_claims_its_shape() -> None:
    found = make_template(ClaimShape(4096, 30, 2))
    assert (found["kind"], found["metadata"]["name"]) == (
        "ResourceClaimTemplate",
        "cgpu-mem-4096-core-30-count-2",
    )
    [request] = found["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"] == {
        "deviceClassName": "gpu.cgpu",
        "allocationMode": "ExactCount",
        "count": 2,
        "capacity": {"requests": {"memory": "4Gi", "cores": "30"}},
    }
    [whole] = make_template(ClaimShape(0))["spec"]["spec"]["devices"]["requests"]
    assert whole["exactly"] == {
        "deviceClassName": "gpu.cgpu",
        "allocationMode": "ExactCount",
        "count": 1,
    }
