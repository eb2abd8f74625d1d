"""The extender leads pods to the units of their ResourcePolicy.

COS-1, COS-2, COS-3, COS-4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cgpu_k8s.apiserver.errors import ForbiddenError, NoAnswerError
from cgpu_k8s.objects.nodes import read_node
from cgpu_k8s.objects.pods import read_pod
from cgpu_k8s.scheduler import server
from cgpu_k8s.scheduler.policies.policy_informer import read_known_policy
from lab.worlds.extender import World, node, pod, policy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

pytestmark = pytest.mark.unit

Json = dict[str, Any]
NODES = ("a", "b", "c")


def unit(pool: str, **more: Any) -> Json:
    return {"nodeSelector": {"pool": pool}, **more}


def world(*policies: Json, pods: tuple[Json, ...] = ()) -> World:
    """Three nodes, each of its own pool, and these policies."""
    made = World(*pods, nodes=())
    made.cache.replace_nodes(read_node(node(name, pool=name)) for name in NODES)
    made.cache.policies.replace_policies(map(read_known_policy, policies))
    made.cache.replace_pods([])
    return made


def with_each_kind(
    work: Callable[[World, Callable[..., Json]], Awaitable[None]], *policies: Json
) -> None:
    """Do some work with pods that ask for a GPU, and with pods that do not."""
    for mem in (1, None):

        def make(name: str, mem: object = mem, **labels: str) -> Json:
            return pod(name, mem, **{"app": "x", **labels})

        made = world(*policies)

        async def act(made: World = made, make: Callable[..., Json] = make) -> None:
            await work(made, make)

        made.run(act)


def bind_all(made: World, *pods: Json) -> None:
    for each in pods:
        made.server.pods[each["metadata"]["name"]] = each


async def fitting(made: World, given: Json, names: tuple[str, ...] = NODES) -> list[str]:
    answer = await made.filter(given, names)
    assert set(answer["FailedNodes"]) == {*names} - {*answer["NodeNames"]}
    found: list[str] = answer["NodeNames"]
    return found


def test_pods_fill_the_units_in_order_and_each_up_to_its_max() -> None:
    """COS-1, COS-2: the next pod is asked about before the last one is bound."""

    async def work(made: World, make: Callable[..., Json]) -> None:
        answers = [await fitting(made, make(f"p{n}")) for n in range(6)]
        assert answers == [["c"], ["c"], ["a"], ["b"], ["b"], ["b"]]

    with_each_kind(work, policy(unit("c", max=2), unit("a", max=1), unit("b")))


def test_the_other_nodes_are_refused_with_the_unit_in_force() -> None:
    """COS-1: kube-scheduler evicts nobody there."""

    async def work(made: World, make: Callable[..., Json]) -> None:
        answer = await made.filter(make("p"), NODES)
        text = "ResourcePolicy rule: unit 1 is in force"
        assert answer["FailedAndUnresolvableNodes"] == {"a": text, "b": text}
        answer = await made.filter(make("q"), NODES)
        text = "ResourcePolicy rule: unit 1 has 1 of its 1 pods; unit 2 is in force"
        assert answer["FailedAndUnresolvableNodes"] == {"b": text, "c": text}
        assert await made.metric('cgpu_extender_refused_nodes_total{reason="unit"} 4.0')

    with_each_kind(work, policy(unit("c", max=1), unit("a")))


def test_other_pods_and_other_namespaces_go_anywhere() -> None:
    async def work(made: World, make: Callable[..., Json]) -> None:
        assert await fitting(made, make("p", app="y")) == [*NODES]
        other = make("q")
        other["metadata"]["namespace"] = "other"
        assert await fitting(made, other) == [*NODES]
        assert made.cache.policies.promised == {}

    with_each_kind(work, policy(unit("c", max=1), selector={"app": "x"}))


def test_a_pod_without_gpus_and_policy_is_bound_by_one_request() -> None:
    """COS-1: it is asked about because another one may have a policy."""
    given = pod("p", None)
    made = world(policy(unit("c")), pods=(given,))
    given["metadata"]["namespace"] = "other"

    async def work() -> None:
        assert await fitting(made, given) == [*NODES]
        assert await made.bind(given, "b") == ""

    made.run(work)
    assert made.server.calls == ["POST /api/v1/namespaces/other/pods/p/binding"]
    assert made.server.bindings[0]["metadata"]["annotations"] == {}


def test_labels_of_a_user_stay_unless_they_are_another_units() -> None:
    """COS-2: such a one is from a binding that failed."""

    async def work(made: World, make: Callable[..., Json]) -> None:
        for name, tier in (("p", "mine"), ("q", "first")):
            given = make(name, tier=tier)
            bind_all(made, given)
            assert await fitting(made, given, ("b",)) == ["b"]
            assert await made.bind(given, "b") == ""
            assert given["metadata"]["labels"].get("tier") == ("mine" if name == "p" else None)

    with_each_kind(work, policy(unit("c", podLabels={"tier": "first"}), unit("b")))


def test_nodes_outside_all_units_come_last_or_never() -> None:
    """COS-2: ``strategy``."""

    async def last(made: World, make: Callable[..., Json]) -> None:
        assert await fitting(made, make("p")) == ["c"]
        assert await fitting(made, make("q")) == ["a", "b"]

    async def never(made: World, make: Callable[..., Json]) -> None:
        assert await fitting(made, make("p")) == ["c"]
        answer = await made.filter(make("q"), NODES)
        assert answer["NodeNames"] == []
        assert answer["FailedNodes"]["a"] == (
            "ResourcePolicy rule: unit 1 has 1 of its 1 pods; no other node may"
        )

    with_each_kind(last, policy(unit("c", max=1)))
    with_each_kind(never, policy(unit("c", max=1), strategy="required"))


def test_a_pod_without_a_label_by_which_it_is_counted_is_refused_with_a_sentence() -> None:
    """COS-4: ``matchLabelKeys``."""

    async def work(made: World, make: Callable[..., Json]) -> None:
        answer = await made.filter(make("p"), ("a", "c"))
        text = "ResourcePolicy rule: matchLabelKeys has hash, and the pod has no such label"
        assert answer["FailedAndUnresolvableNodes"] == {"a": text, "c": text}
        found = [await fitting(made, make(f"p{n}", hash=str(n % 2))) for n in range(4)]
        assert found == [["c"], ["c"], ["a"], ["a"]]

    with_each_kind(work, policy(unit("c", max=1), unit("a"), matchLabelKeys=["hash"]))


def test_resources_are_limited_as_pods_are() -> None:
    """COS-2: ``maxResources``."""

    async def work(made: World, make: Callable[..., Json]) -> None:
        for n, expected in enumerate(("c", "c", "a")):
            given = make(f"p{n}")
            given["spec"]["containers"][0]["resources"]["requests"] = {"memory": "1536Mi"}
            assert await fitting(made, given) == [expected]

    with_each_kind(work, policy(unit("c", maxResources={"memory": "4Gi"}), unit("a")))


def test_a_pod_waits_in_a_unit_for_a_time_and_then_goes_on(monkeypatch: Any) -> None:
    """COS-3: ``TimeoutOrExceedMax``."""
    now = 100.0

    async def work(made: World, make: Callable[..., Json]) -> None:
        nonlocal now
        monkeypatch.setattr(made.extender._scheduling, "_clock", lambda: now)  # noqa: SLF001
        given = make("p")
        answer = await made.filter(given, ("a",))
        assert answer["FailedNodes"]["a"] == (
            "ResourcePolicy rule: unit 1 has no node with room, and the pod waits up to 10 s for"
            " one"
        )
        [wait] = made.cache.policies.waits.values()
        assert (wait.held, wait.again) == (0, now + 10)
        now += 10.0
        assert await fitting(made, given, ("a",)) == ["a"]

    following = {"policy": "TimeoutOrExceedMax", "timeout": "10s"}
    with_each_kind(work, policy(unit("c"), unit("a"), whenTryNextUnits=following))


def test_a_unit_whose_pods_are_ending_is_waited_for() -> None:
    """COS-3, COS-4: they do not count meanwhile, and leave room when they are gone."""

    async def work(made: World, make: Callable[..., Json]) -> None:
        ending = make("old")
        ending["spec"]["nodeName"] = "c"
        ending["metadata"]["deletionTimestamp"] = "2026-02-02T00:00:00Z"
        made.cache.update_pod(read_pod(ending))
        answer = await made.filter(make("p"), ("a",))
        assert "and 1 of its pods are ending" in answer["FailedNodes"]["a"]
        made.cache.remove_pod("uid-old")
        answer = await made.filter(make("p"), ("a",))
        assert "and its last pod has just ended" in answer["FailedNodes"]["a"]
        assert await fitting(made, make("p"), ("a", "c")) == ["c"]

    following = {"policy": "LackResourceAndNoTerminating"}
    with_each_kind(work, policy(unit("c", max=1), unit("a"), whenTryNextUnits=following))


def test_others_are_evicted_in_the_unit_before_the_next_one_or_in_no_unit_before_all() -> None:
    """COS-4: ``preemptPolicy``."""
    victims = {name: {"Pods": [{"UID": f"v-{name}"}]} for name in ("b", "c")}

    async def candidates(made: World, given: Json) -> list[str]:
        asked = {"Pod": given, "NodeNameToMetaVictims": victims}
        return [*(await made.post("preempt", asked))[1]["NodeNameToMetaVictims"]]

    async def before(made: World, make: Callable[..., Json]) -> None:
        given = make("p")
        assert await fitting(made, given, ("a",)) == []
        assert await candidates(made, given) == ["c"]
        evicting = {**given, "status": {"phase": "Pending", "nominatedNodeName": "c"}}
        assert await fitting(made, evicting, ("a",)) == []  # they are ending
        assert await fitting(made, given, ("a",)) == ["a"]

    async def after(made: World, make: Callable[..., Json]) -> None:
        given = make("p")
        assert await fitting(made, given, ("a",)) == []
        assert await candidates(made, given) == []  # it waits
        wait = made.cache.policies.waits["uid-p"]
        made.cache.policies.waits["uid-p"] = wait._replace(units=dict.fromkeys((0, 1), -9e9))
        assert await fitting(made, given, ("x",)) == []
        assert await candidates(made, given) == ["c"]

    units = (unit("c"), unit("a"))
    with_each_kind(before, policy(*units, preemptPolicy="BeforeNextUnit"))
    with_each_kind(
        after,
        policy(*units, strategy="required", whenTryNextUnits={"policy": "TimeoutOrExceedMax"}),
    )


def test_a_bound_pod_has_its_units_labels_annotations_and_cost() -> None:
    """COS-2, COS-5: the labels come before the binding, with which they are counted."""

    async def work(made: World, make: Callable[..., Json]) -> None:
        pods = [make("p"), make("q"), make("r", tier="first")]
        bind_all(made, *pods)
        for each, to in zip(pods, "cab", strict=True):
            assert await fitting(made, each) == [to]
            assert await made.bind(each, to) == ""
        wrote = [each for each in made.server.calls if not each.startswith("GET")]
        path = "/api/v1/namespaces/ns/pods/"
        assert wrote == [
            f"PATCH {path}p",
            f"POST {path}p/binding",
            f"POST {path}q/binding",
            f"PATCH {path}r",
            f"POST {path}r/binding",
        ]
        labels = [each["metadata"].get("labels") for each in pods]
        assert labels == [{"app": "x", "tier": "first"}, {"app": "x"}, {"app": "x"}]
        notes = [each["metadata"]["annotations"] for each in made.server.bindings]
        assert [each.get("note") for each in notes] == [None, "2", None]
        cost = "controller.kubernetes.io/pod-deletion-cost"
        assert [each[cost] for each in notes] == ["200", "100", "0"]
        assert [each["cgpu/deletion-cost"] for each in notes] == ["200", "100", "0"]

    first = unit("c", max=1, podLabels={"tier": "first"})
    with_each_kind(work, policy(first, unit("a", max=1, podAnnotations={"note": "2"})))


def test_the_cost_that_a_user_has_set_stays() -> None:
    """COS-5."""

    async def work(made: World, make: Callable[..., Json]) -> None:
        given = make("p")
        given["metadata"]["annotations"] = {"controller.kubernetes.io/pod-deletion-cost": "7"}
        bind_all(made, given)
        await fitting(made, given)
        assert await made.bind(given, "c") == ""
        assert "cgpu/deletion-cost" not in made.server.bindings[0]["metadata"]["annotations"]
        assert "7" not in made.server.bindings[0]["metadata"]["annotations"].values()

    with_each_kind(work, policy(unit("c")))


def test_a_node_that_the_scheduler_chose_instead_is_counted_or_refused() -> None:
    """COS-2: ``max`` holds whatever a scheduler does with our answer."""

    async def work(made: World, make: Callable[..., Json]) -> None:
        pods = [make("p"), make("q"), make("r")]
        bind_all(made, *pods)
        assert await fitting(made, pods[0]) == ["c"]
        assert await fitting(made, pods[1]) == ["a"]
        assert await made.bind(pods[1], "c") == "ResourcePolicy rule: unit 1 has 1 of its 1 pods"
        assert await made.bind(pods[0], "a") == ""
        assert await made.bind(pods[1], "c") == ""
        assert await made.bind(pods[2], "c") == "ResourcePolicy rule: unit 1 has 1 of its 1 pods"
        assert await made.bind(pods[2], "b") == "ResourcePolicy rule: the node is of no unit"

    with_each_kind(work, policy(unit("c", max=1), unit("a"), strategy="required"))


@pytest.mark.parametrize("error", [ForbiddenError("no", status=403), NoAnswerError("lost")])
def test_a_promise_lasts_until_it_is_known_that_its_binding_failed(error: Any) -> None:
    """COS-2: as a share of a GPU does."""

    async def work(made: World, make: Callable[..., Json]) -> None:
        pods = [make("p"), make("q")]
        bind_all(made, *pods)
        made.server.faults = [("before", error)]
        assert await fitting(made, pods[0]) == ["c"]
        assert await made.bind(pods[0], "c")
        kept = isinstance(error, NoAnswerError)
        assert await fitting(made, pods[1]) == (["a"] if kept else ["c"])
        if kept:
            assert await fitting(made, pods[0]) == ["c"]
            assert await made.bind(pods[0], "a")  # it may be on its way to the other node
            made.cache.forget_expired(9e9)
            assert await fitting(made, pods[1]) == ["a"]
            made.extender.binder._clock = lambda: 9e9  # noqa: SLF001
            await made.extender.binder.resolve_unconfirmed(15)
            assert await fitting(made, pods[1]) == ["c"]

    with_each_kind(work, policy(unit("c", max=1), unit("a", max=1)))


def test_labels_that_cannot_be_written_bind_nothing() -> None:
    async def work(made: World, make: Callable[..., Json]) -> None:
        given = make("p")

        async def refuse(*_: object) -> Json:
            raise ForbiddenError("no", status=403)

        bind_all(made, given)
        made.server.patch = refuse  # type: ignore[method-assign]
        await fitting(made, given)
        assert await made.bind(given, "c") == "no"
        assert made.server.bindings == []
        assert made.cache.policies.promised == {}

    with_each_kind(work, policy(unit("c", podLabels={"tier": "1"})))


def test_an_answer_waits_for_the_pods_of_a_namespace_whose_first_policy_is_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """COS-2: without them nothing could be counted."""
    monkeypatch.setattr(server, "BEGINNING", 0.1)

    async def work(made: World, make: Callable[..., Json]) -> None:
        made.cache.policies.update_policy(read_known_policy(policy(unit("c", max=1), unit("a"))))
        asked = {"Pod": make("p"), "NodeNames": ["a", "c"]}
        status, text = await made.post("filter", asked)
        assert (status, text) == (
            503,
            "the API server has not listed the pods of namespace ns yet\n",
        )
        there = make("there")
        there["spec"]["nodeName"] = "c"
        made.cache.policies.take_namespace("ns", [read_pod(there)])
        assert await fitting(made, make("p")) == ["a"]

    with_each_kind(work)
