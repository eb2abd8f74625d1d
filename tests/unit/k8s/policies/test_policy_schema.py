"""The chart's schema of a ResourcePolicy refuses what the extender could not follow.

COS-1, COS-9.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cgpu_k8s.apiserver.resources import RESOURCE_POLICIES
from cgpu_k8s.objects import policies
from cgpu_k8s.objects.pods import read_pod
from cgpu_k8s.objects.policies import PolicyError, read_policy
from cgpu_k8s.scheduler.cache import SchedulerCache
from cgpu_k8s.scheduler.policies.policy_cache import PolicyCache
from cgpu_k8s.scheduler.policies.policy_informer import read_known_policy
from cgpu_k8s.scheduler.policies.policy_status import make_status
from lab.worlds.extender import pod, policy

pytestmark = pytest.mark.unit

Json = dict[str, Any]
CHART = Path(__file__).resolve().parents[4] / "deploy" / "charts" / "cgpu"
CRD = yaml.safe_load((CHART / "files" / "resourcepolicies.yaml").read_text())
[VERSION] = CRD["versions"]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]
MIXED = "x-kubernetes-int-or-string"
FREE = "x-kubernetes-preserve-unknown-fields"
TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}


def accepts(schema: Json, value: Any) -> bool:
    """Whether an API server accepts a value, as far as the schema's words go."""
    kind = schema.get("type")
    if MIXED in schema and (isinstance(value, bool) or not isinstance(value, int | str)):
        return False
    if kind and (not isinstance(value, TYPES[kind]) or (kind == "integer") > (type(value) is int)):
        return False
    of = schema.get("properties", {})
    if isinstance(value, dict):
        more = schema.get("additionalProperties")
        return (
            value.keys() >= {*schema.get("required", ())}
            and len(value) <= schema.get("maxProperties", 999)
            and all(accepts(of[name], each) for name, each in value.items() if name in of)
            and (more is None or all(accepts(more, each) for each in value.values()))
            and _accepts_any(schema, value)
        )
    if isinstance(value, list):
        fits = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 999)
        return fits and all(accepts(schema.get("items", {}), each) for each in value)
    if isinstance(value, str):
        fits = re.search(schema.get("pattern", ""), value) is not None
        allowed = value in schema.get("enum", (value,))
        return fits and allowed and len(value) >= schema.get("minLength", 0)
    return bool(value >= schema.get("minimum", value))


def _accepts_any(schema: Json, value: Json) -> bool:
    return "oneOf" not in schema or sum(accepts(each, value) for each in schema["oneOf"]) == 1


def follows(item: Json) -> bool:
    try:
        read_policy(item)
    except PolicyError:
        return False
    return True


def rule(**spec: Any) -> Json:
    return {"metadata": {"name": "rule"}, "spec": {"units": [{}], **spec}}


def name_case(given: Json) -> str:
    return str(given)[:120]


def of_unit(**unit: Any) -> Json:
    return rule(units=[unit])


def selecting(**expression: Any) -> Json:
    return rule(selector={"matchExpressions": [expression]})


GOOD = [
    rule(),
    rule(selector={"app": "x"}),
    rule(selector={"matchLabels": {"app": "x"}}),
    selecting(key="app", operator="In", values=["x", "y"]),
    selecting(key="a", operator="NotIn", values=["x"]),
    selecting(key="app", operator="Exists"),
    selecting(key="app", operator="DoesNotExist", values=[]),
    *(rule(strategy=each) for each in ("prefer", "required")),
    *(rule(whenTryNextUnits={"policy": each}) for each in policies.NEXT_POLICIES),
    rule(whenTryNextUnits={"policy": "LackResourceAndNoterminating"}),
    *(rule(whenTryNextUnits={"timeout": each}) for each in ("5s", "10s", "15m", "1h30m", "1h2m3s")),
    rule(matchLabelKeys=["a"]),
    rule(matchLabelKeys=["pod-template-hash"], ignorePreviousPod=True, ignoreTerminatingPod=False),
    *(rule(preemptPolicy=each) for each in ("AfterAllUnits", "BeforeNextUnit")),
    *(of_unit(resource=each) for each in ("ecs", *policies.VIRTUAL)),
    of_unit(nodeSelector={"pool": "a"}, max=1, podLabels={"a": "b"}, podAnnotations={"a": "b"}),
    *(of_unit(podLabels={"a": each}) for each in ("", "a", "A-_.9", "a" * 63)),
    *(of_unit(maxResources={"cpu": each}) for each in (1, "1", "500m", "0.5", "4Gi", "1e3", ".5k")),
]
NAMES = [f"name-{n}" for n in range(policies.MOST)]
LABELS = dict.fromkeys(NAMES, "1")


def long(*more: str) -> list[Json]:
    """Policies in which one list, or one object with free names, has MOST members and more."""
    names, labels = [*NAMES, *more], {**LABELS, **dict.fromkeys(more, "1")}
    expressions = [{"key": each, "operator": "Exists"} for each in names]
    free = ("nodeSelector", "maxResources", "podLabels", "podAnnotations")
    return [
        rule(units=[{} for _ in names]),
        rule(selector=labels),
        rule(selector={"matchLabels": labels}),
        rule(selector={"matchExpressions": expressions}),
        selecting(key="a", operator="In", values=names),
        rule(matchLabelKeys=names),
        *(of_unit(**{each: labels}) for each in free),
    ]


BAD = [
    {"metadata": {}},
    {"metadata": {}, "spec": {}},
    rule(selector={"matchLabels": {"app": 1}}),
    rule(units=[]),
    selecting(operator="Exists"),
    selecting(key="", operator="Exists"),
    selecting(key="app"),
    selecting(key="app", operator="in", values=["x"]),
    selecting(key="app", operator="In"),
    selecting(key="app", operator="NotIn", values=[]),
    selecting(key="app", operator="Exists", values=["x"]),
    selecting(key="app", operator="In", values=[1]),
    rule(strategy="Prefer"),
    rule(whenTryNextUnits={"policy": "Timeout"}),
    *(rule(whenTryNextUnits={"timeout": each}) for each in ("15", "m", "1d", "1m1h", " 1m")),
    rule(matchLabelKeys=[""]),
    rule(matchLabelKeys="a"),
    rule(ignorePreviousPod="yes"),
    rule(preemptPolicy="Never"),
    of_unit(resource="gpu"),
    *(of_unit(max=each) for each in (0, -1, "1", 1.5)),
    *(of_unit(**{each: {"a": 1}}) for each in ("nodeSelector", "podLabels", "podAnnotations")),
    *(of_unit(podLabels={"a": each}) for each in (" ", "a b", "-a", "a.", "a" * 64, "a/b")),
    *(of_unit(maxResources={"cpu": each}) for each in (True, 1.5, [], None)),
    *(of_unit(maxResources={"cpu": each}) for each in (0, -1, "0", "0m", "0.0Gi", "-1", "x", "1g")),
]


# The schema can forbid no name in an object of labels. The policy's status does.
UNSEEN = [
    of_unit(podAnnotations={"cgpu/allocation": "{}"}),
    of_unit(podAnnotations={"controller.kubernetes.io/pod-deletion-cost": "5"}),
    of_unit(podAnnotations={"a b": "x"}),
    of_unit(podLabels={"cgpu/x": "x"}),
]


@pytest.mark.parametrize("given", UNSEEN, ids=name_case)
def test_what_the_schema_cannot_refuse_is_ignored_with_a_sentence(given: Json) -> None:
    """COS-9."""
    assert accepts(SCHEMA, given)
    known = read_known_policy(given)
    assert make_status(PolicyCache(), known)["message"].startswith("the policy is ignored: spec.")


@pytest.mark.parametrize("given", [*GOOD, *long()], ids=name_case)
def test_what_can_be_followed_is_accepted(given: Json) -> None:
    assert follows(given)
    assert accepts(SCHEMA, given)


@pytest.mark.parametrize("given", [*BAD, *long("more")], ids=name_case)
def test_what_cannot_be_followed_is_refused_when_it_is_applied(given: Json) -> None:
    """COS-9."""
    assert not follows(given)
    assert not accepts(SCHEMA, given)


def test_nothing_in_it_has_more_members_than_the_extender_follows() -> None:
    """COS-9: no policy makes the calls of a scheduler slow."""

    def walk(schema: Json, where: str) -> Iterator[tuple[str, Json]]:
        yield where, schema
        items = {"[]": schema["items"]} if "items" in schema else {}
        for name, each in {**schema.get("properties", {}), **items}.items():
            yield from walk(each, f"{where}.{name}")

    for where, each in walk(SCHEMA["properties"]["spec"], "spec"):
        if each.get("type") == "array":
            assert each["maxItems"] == policies.MOST, where
        if "additionalProperties" in each or FREE in each:
            assert each["maxProperties"] == policies.MOST, where


def test_it_has_the_members_that_the_extender_reads() -> None:
    """COS-9: an API server drops all others, and kubectl refuses them."""
    spec = SCHEMA["properties"]["spec"]["properties"]
    assert sorted(spec) == sorted(policies._FIELDS)  # noqa: SLF001
    unit = spec["units"]["items"]["properties"]
    assert sorted(unit) == sorted(policies._UNIT_FIELDS)  # noqa: SLF001
    assert spec["whenTryNextUnits"]["properties"].keys() == {"policy", "timeout"}
    selector = spec["selector"]
    assert selector[FREE] is True  # else it would drop labels, and the policy select all pods
    expressions = selector["properties"]["matchExpressions"]["items"]["properties"]
    assert expressions["operator"]["enum"] == [*policies._OPERATORS]  # noqa: SLF001
    assert FREE not in {**SCHEMA, **SCHEMA["properties"]["spec"], **spec["units"]["items"]}


def test_it_is_the_kind_that_the_extender_follows_with_a_status_of_its_own() -> None:
    """COS-1."""
    assert (CRD["group"], VERSION["name"]) == (RESOURCE_POLICIES.group, RESOURCE_POLICIES.version)
    assert CRD["names"]["plural"] == RESOURCE_POLICIES.plural
    assert (CRD["names"]["kind"], CRD["scope"]) == (policies.KIND, "Namespaced")
    assert VERSION["subresources"] == {"status": {}}
    assert VERSION["served"] is VERSION["storage"] is True
    columns = [(each["name"], each["jsonPath"]) for each in VERSION["additionalPrinterColumns"]]
    assert columns == [
        ("Pods", ".status.pods"),
        ("Outside", ".status.outside"),
        ("Message", ".status.message"),
        ("Age", ".metadata.creationTimestamp"),
    ]
    types = [each["type"] for each in VERSION["additionalPrinterColumns"]]
    status = SCHEMA["properties"]["status"]["properties"]
    assert types == [*(status[name]["type"] for name in ("pods", "outside", "message")), "date"]


def test_its_status_has_the_members_that_the_extender_writes() -> None:
    """COS-9: an API server drops all others."""
    cache = PolicyCache()
    given = policy({"max": 1})
    cache.update_policy(read_known_policy(given))
    written = make_status(cache, cache.known["ns"]["rule"])
    members = SCHEMA["properties"]["status"]["properties"]
    assert members.keys() == written.keys()
    assert members["units"]["items"]["properties"].keys() == written["units"][0].keys()
    assert accepts(SCHEMA["properties"]["status"], written)


@pytest.mark.parametrize("led", [False, True])
@pytest.mark.parametrize("mem", [0, 2])
def test_its_status_says_if_pods_without_gpus_pass_by(mem: int, *, led: bool) -> None:
    """COS-9."""
    cache = SchedulerCache()
    cache.policies.leads_all = led
    cache.policies.update_node("a", {"pool": "a"})
    cache.policies.replace_policies([read_known_policy(policy({"nodeSelector": {"pool": "a"}}))])
    cache.replace_pods([read_pod(pod("one", mem, app="x"))])
    written = make_status(cache.policies, cache.policies.known["ns"]["rule"])
    assert ("podsWithoutGpus" in written.get("message", "")) == (not led and not mem)


def test_it_is_structural() -> None:
    """COS-1: an API server refuses any other."""

    def check(schema: Json, *, nested: bool = False) -> None:
        mixed = schema.get("x-kubernetes-int-or-string", False)
        assert ("type" in schema) != (nested or mixed), schema
        assert not {"properties", "additionalProperties"} <= schema.keys(), schema
        inner = [*schema.get("properties", {}).values(), schema.get("items")]
        for each in [*inner, schema.get("additionalProperties")]:
            if each is not None:
                check(each, nested=nested)
        for each in schema.get("oneOf", ()):
            assert each.get("properties", {}).keys() <= schema["properties"].keys()
            check(each, nested=True)

    check(SCHEMA)
