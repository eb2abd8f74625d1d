"""What the extender writes because of ResourcePolicies, on the leader alone.

COS-2, COS-3, COS-5, COS-9.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cgpu_k8s.apiserver.errors import ForbiddenError
from cgpu_k8s.objects.pods import read_pod
from cgpu_k8s.scheduler.policies.policy_controller import AGAIN
from cgpu_k8s.scheduler.policies.policy_informer import read_known_policy
from lab.worlds.extender import policy
from lab.worlds.policies import COST, PODS, RULE, World, unit

pytestmark = pytest.mark.unit

Json = dict[str, Any]
OURS = "cgpu/deletion-cost"
UNSCHEDULABLE = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]


def test_what_a_pod_costs_to_delete_falls_from_unit_to_unit() -> None:
    """COS-5: pods that others have bound, too."""
    world = World(policy(unit("a", max=1), unit("b")))
    for number, node in enumerate("abc"):
        world.add(f"p{number}", node, created=number)
    world.add("waiting")
    world.work()
    assert world.costs() == {"p0": "200", "p1": "100", "p2": "0"}
    assert world.work() == []
    world.cache.remove_pod("uid-p0")
    world.add("more", "a", created=9)
    world.work()
    assert world.costs() == {"p0": "200", "p1": "100", "p2": "0", "more": "200"}


def test_a_cost_that_a_user_sets_stays_and_one_of_ours_is_replaced() -> None:
    """COS-5."""
    world = World(policy(unit("a"), unit("b")))
    world.add("theirs", "a", annotations={COST: "7"})
    world.add("changed", "a", annotations={COST: "7", OURS: "100"})
    world.add("ours", "a", annotations={COST: "100", OURS: "100"})
    world.work()
    assert world.costs() == {"theirs": "7", "changed": "7", "ours": "200"}


def test_a_pod_whose_time_is_over_is_tried_again_once() -> None:
    """COS-3."""
    following = {"policy": "TimeoutOrExceedMax", "timeout": "10s"}
    world = World(policy(unit("a"), unit("b"), whenTryNextUnits=following))
    world.add("p")
    world.work()
    assert world.ask("p", "b") == []
    world.now = 9.5
    assert [path for path, _ in world.work() if path.startswith(PODS)] == []
    world.now = 10.0
    [(path, body)] = world.work()
    assert path == f"{PODS}/p"
    assert body["metadata"]["annotations"].keys() == {"cgpu/retry"}
    assert world.work() == []
    assert world.ask("p", "b") == ["b"]


def test_a_pod_that_waited_for_ending_ones_tries_the_next_unit_after_it_was_woken() -> None:
    """COS-3: kube-scheduler may ask with nodes from before the end of the pods there."""
    following = {"policy": "LackResourceAndNoTerminating"}
    world = World(policy(unit("a"), unit("b"), whenTryNextUnits=following))
    world.add("old", "a", deletionTimestamp="2026-01-01T00:00:00Z")
    world.add("new")
    world.work()
    assert world.ask("new", "b") == []
    assert world.work() == []
    world.cache.remove_pod("uid-old")
    for _ in range(2):
        assert world.ask("new", "b") == []
    assert world.ask("new", "a", "b") == ["a"]
    world.cache.forget_pod("uid-new")
    assert world.ask("new", "b") == []
    assert f"{PODS}/new" in [path for path, _ in world.work()]
    assert world.ask("new", "b") == ["b"]


def test_a_pod_that_waits_is_tried_again_when_its_policy_changes_or_goes() -> None:
    """COS-3, COS-9."""
    rule = policy(unit("a", max=1), strategy="required")
    world = World(rule)
    world.add("there", "a")
    world.add("p")
    world.work()
    assert world.ask("p", "a") == []
    assert world.work() == []
    world.add("elsewhere", "b")
    assert f"{PODS}/p" not in [path for path, _ in world.work(2)]  # a status is no change
    rule["spec"]["units"][0]["max"] = 2
    world.policies.update_policy(read_known_policy(rule))
    assert f"{PODS}/p" in [path for path, _ in world.work()]
    assert world.ask("p", "a") == ["a"]
    world.cache.forget_pod("uid-p")
    world.policies.waits.clear()
    assert world.ask("p", "b") == []
    world.policies.remove_policy("ns", "rule")
    assert f"{PODS}/p" in [path for path, _ in world.work()]
    assert world.policies.waits == {}


def test_a_pod_for_which_others_are_being_evicted_is_left_to_wait() -> None:
    """COS-4 has the rest."""
    world = World(policy(unit("a"), unit("b"), preemptPolicy="BeforeNextUnit"))
    world.add("p")
    world.work()
    assert world.ask("p", "b") == []
    item = world.items[f"{PODS}/p"]
    item["status"]["nominatedNodeName"] = "a"
    world.cache.update_pod(read_pod(item))
    world.now = 5.0
    assert world.work() == []
    item["status"]["nominatedNodeName"] = ""
    world.cache.update_pod(read_pod(item))
    assert [path for path, _ in world.work()] == [f"{PODS}/p"]


def test_a_pod_that_fits_nowhere_tolerates_the_virtual_nodes_of_its_policy() -> None:
    """COS-2: its scheduler asks about no node whose taint it does not tolerate."""
    world = World(
        policy(unit("a"), {"resource": "eci"}, name="virtual", selector={"app": "x"}),
        policy(unit("a"), name="other", selector={"app": "y"}),
    )
    have = {"key": "x", "operator": "Exists"}
    for name in ("waits", "tolerates", "new", "other"):
        world.add(name)
        item = world.items[f"{PODS}/{name}"]
        if name != "new":
            item["status"]["conditions"] = UNSCHEDULABLE
        item["metadata"]["resourceVersion"] = "5"
        item["spec"] |= {"tolerations": [have], "schedulerName": "ack-co-scheduler"}
    world.items[f"{PODS}/tolerates"]["spec"]["tolerations"] = [{"operator": "Exists"}]
    world.items[f"{PODS}/other"]["metadata"]["labels"] = {"app": "y"}
    for item in world.items.values():
        if "containers" in item["spec"]:
            world.cache.update_pod(read_pod(item))
    [(path, body)] = [each for each in world.work() if each[0].startswith(PODS)]
    assert path == f"{PODS}/waits"
    assert body["metadata"]["resourceVersion"] == "5"
    added = {"key": "virtual-kubelet.io/provider", "operator": "Exists"}
    assert body["spec"] == {"tolerations": [have, added]}
    world.reads = 0
    world.policies.changed.add("ns")
    assert world.work() == []
    assert world.reads == 0


@pytest.mark.parametrize("scheduler", ["default-scheduler", "cgpu-scheduler"])
def test_a_pod_that_no_policy_leads_is_not_let_onto_virtual_nodes(scheduler: str) -> None:
    """COS-2: it would pass by the units' limits."""
    world = World(policy(unit("a"), {"resource": "eci"}))
    world.policies.leads_all = scheduler == "default-scheduler"
    world.add("p")
    item = world.items[f"{PODS}/p"]
    item["status"]["conditions"], item["spec"]["schedulerName"] = UNSCHEDULABLE, scheduler
    world.cache.update_pod(read_pod(item))
    assert [path for path, _ in world.work() if path.startswith(PODS)] == []


def test_the_status_has_the_pods_of_each_unit_and_changes_only_with_them() -> None:
    """COS-9 for what is wrong."""
    world = World(policy(unit("a", max=2), unit("b"), selector={"app": "x"}))
    for number, node in enumerate("abc"):
        world.add(f"p{number}", node)
    world.work(2)
    assert world.items[f"{RULE}/rule"]["status"] == {
        "units": [{"pods": 1}, {"pods": 1}],
        "outside": 1,
        "pods": "1/2, 1",
    }
    assert not any(path.endswith("events") for path, _ in world.writes)
    world.policies.changed.add("ns")
    assert world.work() == []


def test_what_is_wrong_with_a_policy_is_in_its_status_and_in_one_event() -> None:
    """COS-9, COS-5: two policies for one pod; a unit, a selector that match nothing; bad values."""
    world = World(
        policy(unit("a"), name="first"),
        policy(unit("z"), name="second", selector={"app": "x"}, created="2026-01-02T00:00:00Z"),
        policy(unit("a"), name="unused", selector={"app": "y"}),
        policy({"max": 0}, name="wrong"),
    )
    world.add("p", "a")
    writes = world.work()
    both = "ResourcePolicy first counts, and second select the same pod"
    expected = {
        "first": both,
        "second": f"{both}; spec.units[0]: no node matches it",
        "unused": "spec.selector: it selects no pod of the namespace",
        "wrong": "the policy is ignored: spec.units[0].max=0: expected a whole number from 1, or no"
        " max",
    }
    status = {name: world.items[f"{RULE}/{name}"]["status"]["message"] for name in expected}
    assert status == expected
    events = [body for path, body in writes if path == "/api/v1/namespaces/ns/events"]
    assert {each["involvedObject"]["name"]: each["message"] for each in events} == expected
    reasons = {each["involvedObject"]["name"]: each["reason"] for each in events}
    assert reasons == {**dict.fromkeys(expected, "PolicyUnclear"), "wrong": "PolicyIgnored"}
    world.policies.changed.add("ns")
    assert world.work() == []
    world.add("q", "a")
    assert not any(path.endswith("events") for path, _ in world.work())


def test_a_kind_of_another_system_without_our_status_gets_one_event() -> None:
    """COS-9: its API server drops the status, or has none."""
    world = World(policy(unit("z")))
    world.add("p", "a")
    del world.items[f"{RULE}/rule"]
    assert [path for path, _ in world.work()] == [f"{PODS}/p", "/api/v1/namespaces/ns/events"]
    world.policies.changed.add("ns")
    assert world.work() == []
    assert world.log == []


def test_nothing_is_written_while_another_replica_leads() -> None:
    """COS-5: and all of it once this one does."""
    world = World(policy(unit("a")))
    world.add("p", "a")
    world.problem = "it does not lead"
    assert world.work() == []
    assert world.log == []
    world.problem, world.now = "", AGAIN
    assert world.work()
    assert world.costs() == {"p": "100"}


def test_writes_that_are_refused_are_tried_again_later() -> None:
    """COS-5."""
    world = World(policy(unit("a")))
    world.add("p", "a")
    world.fault = ForbiddenError("no", status=403)
    world.work(5)
    assert world.log == ["policy_not_written"] * 2  # of the pods, and of the policies
    world.fault, world.now = None, AGAIN
    world.work()
    assert world.costs() == {"p": "100"}


def test_policies_that_change_or_go_while_others_are_written_are_taken_as_they_are() -> None:
    """COS-5, COS-9."""
    rules = [
        policy(unit("a"), name=name, selector={"app": "x"}) for name in ("one", "two", "three")
    ]
    world = World(*rules)
    world.add("p", "a")

    def change() -> None:
        if "two" in world.policies.known["ns"]:
            world.policies.remove_policy("ns", "two")
            rules[2]["spec"]["units"].append(unit("b"))
            world.policies.update_policy(read_known_policy(rules[2]))

    world.meanwhile = change
    world.work(2)
    assert "status" not in world.items[f"{RULE}/two"]
    assert len(world.items[f"{RULE}/three"]["status"]["units"]) == 2
    world.meanwhile = lambda: world.policies.replace_policies(())
    world.policies.changed.add("ns")
    world.add("q", "a")
    world.work()
    assert world.log == []


def test_a_pod_that_cannot_be_woken_is_tried_later() -> None:
    """COS-3."""
    world = World(policy(unit("a"), strategy="required", preemptPolicy="BeforeNextUnit"))
    world.add("p")
    world.work()
    assert world.ask("p", "b") == []
    world.now, world.fault = 1.0, ForbiddenError("no", status=403)
    world.work(5)
    assert world.log == ["policy_not_written"]
    world.now, world.fault = 1.0 + AGAIN, None
    assert f"{PODS}/p" in [path for path, _ in world.work()]


def test_pods_that_cannot_be_patched_keep_no_other_one_waiting() -> None:
    """COS-3: nor do those of other namespaces, which are woken in the same look."""
    following = {"policy": "TimeoutOrExceedMax", "timeout": "10s"}
    world = World(policy(unit("a"), strategy="required", whenTryNextUnits=following))
    bad = [f"bad{number:02}" for number in range(12)]
    for name in (*bad, "good"):
        world.add(name)
    world.work()
    world.unpatchable = {*bad}
    for name in (*bad, "good"):
        assert world.ask(name, "b") == []
    world.now = 10.0
    assert [path for path, _ in world.work()] == [f"{PODS}/good"]
    assert world.log == ["policy_not_written"]  # once for all of one kind
    world.work()
    assert world.log == ["policy_not_written"]
    world.now += AGAIN
    world.work()
    assert world.log == ["policy_not_written"] * 2


def test_a_pod_or_policy_that_cannot_be_patched_stops_no_other_write() -> None:
    """COS-2, COS-5, COS-9."""
    rules = [policy(unit("a"), {"resource": "eci"}, name=name) for name in ("bad", "good")]
    world = World(*rules)
    for name in ("bad", "p"):
        world.add(name, "a")
    for name in ("bad-waiting", "waiting"):
        world.add(name)
        item = world.items[f"{PODS}/{name}"]
        item["status"]["conditions"], item["spec"]["schedulerName"] = (
            UNSCHEDULABLE,
            "cgpu-scheduler",
        )
        world.cache.update_pod(read_pod(item))
    world.unpatchable = {"bad", "bad-waiting"}
    writes = [path for path, _ in world.work()]
    assert f"{RULE}/good/status" in writes
    assert f"{PODS}/waiting" in writes
    assert world.costs() == {"p": "200"}


def test_a_pod_that_is_gone_stops_no_other_write() -> None:
    """COS-5."""
    world = World(policy(unit("a")))
    for name in ("gone", "p"):
        world.add(name, "a")
    del world.items[f"{PODS}/gone"]
    world.work()
    assert world.costs() == {"p": "100"}
    assert world.log == []


def test_a_controller_that_runs_writes_what_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """COS-5."""
    from cgpu_k8s.scheduler.policies import policy_controller  # noqa: PLC0415

    monkeypatch.setattr(policy_controller, "LOOK", 0.001)
    world = World(policy(unit("a")))

    async def run() -> None:
        task = asyncio.ensure_future(world.controller.run())
        world.problem = "it does not lead"
        await asyncio.sleep(0.01)
        world.add("p", "a")
        assert world.writes == []
        world.problem = ""
        while not world.costs():  # noqa: ASYNC110 (nothing in the product waits for tests)
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
