"""K8S-15, K8S-16: the guard's rules say the same as CEL and in Python, for the same requests."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cgpu_k8s.admission.policies import EVENTS, make_policies
from cgpu_k8s.admission.reviews import AdmissionRequest, mutate
from cgpu_k8s.admission.rules import Review, find_refusal
from cgpu_k8s.admission.settings import Settings
from cgpu_k8s.admission.webhooks import (
    CONDITIONS,
    FIRST,
    POLICIES,
    VERSIONS,
    dump_objects,
    make_objects,
)
from cgpu_k8s.names import NODE_LABELS, NODE_RESOURCES
from cgpu_k8s.objects.pods import read_pod
from lab.kubernetes.cel import AGENT, HOOKS, SCHEDULER, SETTINGS, asked, both, created
from lab.kubernetes.manifests import (
    CORE,
    COUNT,
    IMPOSSIBLE,
    MEM,
    WHOLE,
    asking,
    container,
    of,
    pod,
)

pytestmark = pytest.mark.unit


def test_possible_pods_are_let_in_however_numbers_are_written() -> None:
    written = (asking("10", "1k", "10"), asking("1e3", label="0008"), asking("3E0", "+5"))
    same = (of(container({MEM: "3", CORE: "5"}, {MEM: "3e0", CORE: "+5"})),)
    for item in (pod("p", 3), pod("p", 2, 30), pod("p", 8, 100, count=2), *written, *same):
        assert both(created(item)) == ("", "")
    whole = container({WHOLE: "16"}), container({WHOLE: "1e0"}, {WHOLE: "1"})
    for item in (*map(of, whole), of(whole[0], label="two"), of({"name": "a"}, init=[whole[0]])):
        assert both(created(item)) == ("", "")
    plain = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main"}], "nodeName": "n"}}
    assert both(created(plain)) == ("", "")


GROUP = ("gpu-topology", "gpu-topology-replica")
POD_GROUP = tuple(f"pod-group.scheduling.sigs.k8s.io/{each}" for each in ("name", "min-available"))


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("pair", [GROUP, POD_GROUP])
def test_cos_9_labels_of_a_group_are_two_and_have_a_number(
    pair: tuple[str, str], *, asks: bool
) -> None:
    """COS-9; of a pod that asks for no GPU they are free."""
    name, size = pair
    for labels, sentence in (
        ({name: "job"}, f"label {name} without {size}: expected both"),
        ({size: "2"}, f"label {size} without {name}: expected both"),
        ({name: "", size: ""}, f"label {size} without {name}: expected both"),
        ({name: "job", size: "two"}, f"label {size}=two: expected a whole number from 1 to 9999"),
        ({name: "job", size: "10000"}, f"label {size}=10000: expected a whole number from 1"),
        ({name: "job", size: "02"}, f"label {size}=02: expected a whole number from 1"),
        ({name: "job", size: "2"}, ""),
    ):
        item = pod("p", 2) if asks else of({"name": "main"})
        item["metadata"].setdefault("labels", {}).update(labels)
        one, other = both(created(item))
        assert one == other
        assert one.startswith(sentence) if asks and sentence else one == ""


def test_cos_9_a_pod_is_in_one_group() -> None:
    """COS-9."""
    for more, allowed in ((("job", "2"), True), (("other", "2"), False), (("job", "3"), False)):
        item = pod("p", 2)
        item["metadata"]["labels"] |= {
            GROUP[0]: "job",
            GROUP[1]: "2",
            **dict(zip(POD_GROUP, more, strict=True)),
        }
        one, other = both(created(item))
        assert one == other
        assert (one == "") == allowed


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_no_gpu_could_give_is_refused_at_creation(name: str) -> None:
    assert all(both(created(IMPOSSIBLE[name])))


AMOUNTS = st.sampled_from(
    ["0", "1", "2", "5", "+5", "10", "16", "30", "33", "100", "200", "2e0", "1k", "1e3", "8Gi",
     "-5", "3000m", "1500m", "2.0", "1.5", "1E", "4M"]
)  # fmt: skip
ASKED = st.none() | st.dictionaries(
    st.sampled_from([MEM, CORE, COUNT, WHOLE, "nvidia.com/gpu", "cpu"]), AMOUNTS
)


@pytest.mark.long
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
    item = of(*named, label=label, init=first, schedulerName=scheduler, nodeName=node)
    both(created(item))
    assert bool(asked(created(item), CONDITIONS, mutating=True)) == read_pod(item).asks_for_gpu


def test_a_pod_that_asks_goes_to_a_scheduler_that_asks_cgpu() -> None:
    for spec in ({"schedulerName": "default-scheduler"}, {"nodeName": "gpu-a"}):
        item = pod("p", 2)
        item["spec"] |= spec
        assert all(both(created(item)))
        assert all(both(created(item, SCHEDULER)))
    own = Settings((SCHEDULER,), AGENT, ("default-scheduler",))
    assert (
        find_refusal(created(of(container({MEM: "2"}), schedulerName="default-scheduler")), own)
        == ""
    )


def test_a_documented_job_without_a_scheduler_is_let_in_once_it_is_changed() -> None:
    item = of(container({MEM: "2", CORE: "30"}), schedulerName="default-scheduler")
    assert all(both(created(item)))
    response = mutate(AdmissionRequest("u", "default", "p", created(item)), SETTINGS)["response"]
    for step in json.loads(base64.b64decode(response["patch"])):
        item["spec"][step["path"].removeprefix("/spec/")] = step["value"]
    assert both(created(item)) == ("", "")


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


HELD: Any = {
    "metadata": {
        "name": "gpu-a",
        "labels": {"team": "ml", **dict.fromkeys(NODE_LABELS, "1")},
        "annotations": {"cgpu/gpus": "{}", "mine": "1"},
        "finalizers": ["wait"],
        "generation": 3,
    },
    "spec": {"podCIDR": "10.0.0.0/24", "taints": [{"key": "k", "effect": "NoSchedule"}]},
    "status": {
        "capacity": {"cpu": "4", "aliyun.com/gpu-count": "2", **dict.fromkeys(NODE_RESOURCES, "9")},
        "allocatable": {"cpu": "3", **dict.fromkeys(NODE_RESOURCES, "9")},
        "images": [{"names": ["a", "b"], "sizeBytes": 5}],
    },
}
BARE: Any = {"metadata": {"name": "gpu-a"}, "spec": {}, "status": {}}
OFFERED = [
    ("metadata", "annotations", "cgpu/gpus"),
    *(("metadata", "labels", name) for name in NODE_LABELS),
    *(("status", "capacity", name) for name in NODE_RESOURCES),
    *(("status", "allocatable", name) for name in NODE_RESOURCES),
    ("metadata", "generation"),
    ("metadata", "managedFields"),
    ("metadata", "resourceVersion"),
]
OTHERS = [
    *(("metadata", "annotations", name) for name in ("mine", "cgpu/allocation")),
    *(("metadata", "labels", name) for name in ("team", "ack.node.gpu.schedule", "node-role")),
    *(("metadata", name) for name in ("finalizers", "ownerReferences", "new")),
    *(("spec", name) for name in ("unschedulable", "taints", "podCIDR", "providerID")),
    *(("status", "capacity", name) for name in ("cpu", "aliyun.com/gpu-count", "memory")),
    *(("status", "allocatable", name) for name in ("cpu", "nvidia.com/gpu")),
    *(("status", name) for name in ("images", "conditions", "addresses", "declaredFeatures")),
    ("data",),
]


def with_member(item: Any, path: tuple[str, ...], value: Any) -> Any:
    """A copy of an object in which a member has another value; None: it is not there."""
    first, rest = path[0], path[1:]
    found = with_member(item.get(first, {}), rest, value) if rest else value
    return {**{key: each for key, each in item.items() if key != first},
            **({first: found} if found is not None else {})}  # fmt: skip


def turns(path: tuple[str, ...]) -> Iterator[tuple[Any, Any]]:
    """A node before and after somebody set, changed, emptied or removed a member."""
    first, second = (with_member(HELD, path, [{"new": each}]) for each in (1, 2))
    absent = with_member(HELD, path, None)
    yield from ((first, second), (absent, first), (first, absent))
    yield with_member(HELD, path, ""), absent
    yield BARE, with_member(BARE, path, "1")
    yield with_member(BARE, path, "1"), BARE


def ruled(after: Any, before: Any, node: str = "gpu-a", user: str = AGENT) -> set[bool]:
    """Whether an agent's change is refused, of the node itself and of its status."""
    return {all(both(Review("UPDATE", resource, user, after, before, node)))
            for resource in ("nodes", "nodes/status")}  # fmt: skip


@pytest.mark.parametrize("path", OFFERED, ids=".".join)
def test_k8s_16_an_agent_changes_what_it_offers_of_its_own_node(path: tuple[str, ...]) -> None:
    for before, after in turns(path):
        assert ruled(after, before) == {False}
        for node in ("gpu-b", ""):
            assert ruled(after, before, node) == {True}


@pytest.mark.parametrize("path", OTHERS, ids=".".join)
def test_k8s_16_an_agent_changes_nothing_else(path: tuple[str, ...]) -> None:
    for before, after in turns(path):
        assert ruled(after, before) == {True}, (before, after)
        for user in ("system:node:gpu-a", SCHEDULER, "system:serviceaccount:ml:cgpu-agent"):
            assert ruled(after, before, "", user) == {False}


def test_k8s_16_an_agent_that_changes_nothing_is_let_in() -> None:
    assert ruled(HELD, HELD) == ruled(BARE, BARE) == {False}
    assert ruled(BARE, HELD) == ruled(HELD, BARE) == {True}


def test_each_policy_denies_and_is_whole() -> None:
    made = dump_objects(SETTINGS, "cgpu-system", POLICIES)
    written = list(yaml.safe_load_all(made))[: 2 * len(EVENTS)]
    assert written == make_policies(SETTINGS)
    assert [each["metadata"]["name"] for each in written[::2]] == list(EVENTS)
    for policy, binding in zip(written[::2], written[1::2], strict=True):
        assert binding["spec"] == {
            "policyName": policy["metadata"]["name"],
            "validationActions": ["Deny"],
        }
        later = policy["metadata"]["name"] == "cgpu-templates"
        assert policy["spec"]["failurePolicy"] == ("Ignore" if later else "Fail")
        for check in policy["spec"]["validations"]:
            assert {*check} == {"expression", "messageExpression"}


PLAIN = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main"}]}}
BINDING = {"metadata": {"name": "p"}, "target": {"name": "n"}}


def test_without_a_guard_only_what_concerns_gpus_waits() -> None:
    other = of(container({"cpu": "1", "nvidia.com/gpu": "1"}, {"cpu": "1"}), init=[{"name": "i"}])
    for minor in (CONDITIONS, POLICIES):
        for item in (PLAIN, other):
            for mutating in (False, True):
                assert asked(created(item), minor, mutating=mutating) == set()
            changed = {**item, "metadata": {"name": "p", "annotations": {"mine": "1"}}}
            for resource in ("pods", "pods/status", "pods/ephemeralcontainers"):
                assert asked(Review("UPDATE", resource, "kubelet", changed, item), minor) == set()
        assert asked(created(pod("p", 2)), minor, mutating=True) == {"Fail"}
        for resource in ("pods/binding", "bindings"):
            for user in (SCHEDULER, "system:kube-scheduler"):
                assert asked(Review("CREATE", resource, user, BINDING), minor) == set()
            assert asked(Review("CREATE", resource, "alice", BINDING), minor) == {"Ignore"}
    assert asked(created(PLAIN), FIRST) == {"Ignore"}


def test_the_schedulers_own_writes_need_no_guard() -> None:
    note = {"metadata": {"name": "p", "annotations": {"cgpu/allocation": "{}"}}}
    assert asked(Review("CREATE", "pods/binding", SCHEDULER, note), CONDITIONS) == set()
    assert asked(Review("UPDATE", "pods", SCHEDULER, {**PLAIN, **note}, PLAIN), CONDITIONS) == set()


@pytest.mark.parametrize("minor", VERSIONS)
def test_each_webhook_writes_nothing_and_keeps_nobody_waiting(minor: int) -> None:
    written = list(yaml.safe_load_all(dump_objects(SETTINGS, "cgpu-system", minor)))
    assert written == make_objects(SETTINGS, "cgpu-system", minor)
    names = [hook["name"] for found in HOOKS[minor] for hook in found]
    assert len(names) == len({*names})
    # What another webhook adds to a node is not what the node's agent writes.
    again = {
        hook["name"] for found in HOOKS[minor] for hook in found if "reinvocationPolicy" in hook
    }
    assert again == {"schedulers.guard.cgpu"}
    for found in HOOKS[minor]:
        for hook in found:  # path and authority are the guard's to add
            service = {"namespace": "cgpu-system", "name": "cgpu-guard", "port": 443}
            assert hook["clientConfig"] == {"service": service}
            assert hook["sideEffects"] == "None"
            assert hook["timeoutSeconds"] <= 5
            assert ("matchConditions" in hook) == (minor >= CONDITIONS)
            assert hook["failurePolicy"] == "Ignore" or hook["matchConditions"]
