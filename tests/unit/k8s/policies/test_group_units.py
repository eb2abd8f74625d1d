"""Groups of pods in the units of ResourcePolicies: whole in one unit. COS-2, COS-3, COS-7."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpu_k8s.objects.allocations import Allocation
from cgpu_k8s.objects.nodes import read_node
from cgpu_k8s.objects.pods import Pod, read_pod
from cgpu_k8s.scheduler.cache import SchedulerCache
from cgpu_k8s.scheduler.extender_api import ExtenderArgs
from cgpu_k8s.scheduler.groups import HOLD_SECONDS
from cgpu_k8s.scheduler.placing import allocate_for_binding
from cgpu_k8s.scheduler.policies import group_units
from cgpu_k8s.scheduler.policies.policy_controller import PolicyController
from cgpu_k8s.scheduler.policies.policy_informer import read_known_policy
from cgpu_k8s.scheduler.policies.unit_choices import check_binding
from cgpu_k8s.scheduler.scheduling import Scheduling
from lab.worlds.cache import bound
from lab.worlds.extender import World, node, policy
from lab.worlds.extender import pod as sharing

pytestmark = pytest.mark.unit

Json = dict[str, Any]
NODES = tuple(f"{pool}{n}" for pool in "abc" for n in range(2))


def unit(pool: str, **more: Any) -> Json:
    return {"nodeSelector": {"pool": pool}, **more}


def member(group: str, number: int, size: int = 3, **labels: str) -> Json:
    """A pod of a group, which takes half of a GPU."""
    of = {"gpu-topology": group, "gpu-topology-replica": str(size)} if size else {}
    made = sharing(f"{group}-{number}", 7, **{"app": "x", **of, **labels})
    made["metadata"]["creationTimestamp"] = f"2026-02-01T00:00:{number:02}Z"
    return made


class Cluster:
    """Three pools of two nodes with two GPUs each: room for eight pods in each pool."""

    def __init__(self, *policies: Json) -> None:
        self.cache, self.now = SchedulerCache(), 0.0
        self.policies = self.cache.policies
        self.cache.replace_nodes(read_node(node(name, pool=name[0])) for name in NODES)
        self.policies.replace_policies(map(read_known_policy, policies))
        self.cache.replace_pods([])
        self.scheduling = Scheduling(self.cache, clock=lambda: self.now)
        self.pods: dict[str, Pod] = {}
        self.woken: list[str] = []

    def add(self, *items: Json) -> list[str]:
        found = [read_pod(each) for each in items]
        self.pods |= {each.name: each for each in found}
        for each in found:
            self.cache.update_pod(each)
        return [each.name for each in found]

    def ask(self, name: str, nodes: tuple[str, ...] = NODES) -> str:
        """The node that a pod may go to, or why there is none."""
        answer = self.scheduling.filter(ExtenderArgs(self.pods[name], [*nodes], None))
        found: list[str] = answer["NodeNames"] or [*answer["FailedNodes"].values()]
        return found[0]

    def ask_all(self, names: list[str]) -> list[str]:
        """The pools, or reasons, of all pods of a group once all have asked."""
        for name in names:
            self.ask(name)
        answers = [self.ask(name) for name in names]
        return [each[0] if each in NODES else each for each in answers]

    def place(self, group: str, size: int = 3, **labels: str) -> list[str]:
        """Let a new group ask; the pools, or reasons, of its pods."""
        return self.ask_all(self.add(*(member(group, n, size, **labels) for n in range(size))))

    def bind(self, name: str, to: str) -> str:
        """Bind a pod, as the extender does; why it may not, or ""."""
        pod = self.pods[name]
        if problem := check_binding(self.policies, pod, to):
            return problem
        allocation = allocate_for_binding(self.cache, pod, to, self.now)
        assert isinstance(allocation, Allocation)
        self.pods[name] = bound(pod, allocation)
        self.cache.update_pod(self.pods[name])
        return ""

    def come(self, name: str, to: str) -> None:
        """Let a binding wait for those of the pod's group, and bind all once they have come."""
        pod, came = self.pods[name], {name: to}
        if pod.group:
            rendezvous = self.cache.groups.arrive(pod.uid)
            assert not rendezvous.answer
            of = {each.uid: each.name for each in self.pods.values()}
            spots = {of[uid]: self.cache.assumed[uid].allocation.node for uid in rendezvous.came}
            came = {} if rendezvous.answer is None else spots
        for each, node_name in came.items():
            assert self.bind(each, node_name) == ""

    async def patch(self, path: str, *_: Any) -> Json:
        self.woken.append(path.rpartition("/")[2])
        return {}

    def rest(self, seconds: float) -> None:
        """Let time pass, and the controller wake who has waited."""
        self.now += seconds
        api: Any = self
        controller = PolicyController(
            api, self.policies, lambda: "", lambda *_: None, lambda: self.now
        )
        self.policies.changed.clear()
        asyncio.run(controller.write_changes())

    def sums(self, name: str = "rule") -> list[int]:
        [found] = [each for each in self.policies.list_policies() if each.name == name]
        return self.policies.get_counts(found).sum_units()


@pytest.mark.parametrize("policies", [(), (policy(unit("a", max=9)),)])
def test_equal_sets_of_nodes_are_kept_once_and_no_longer_than_pods_have_them(
    policies: tuple[Json, ...],
) -> None:
    """Also the sets that a policy narrows; and those of pods that are not known yet."""
    cluster, groups = Cluster(*policies), []
    for group in ("g1", "g2"):
        pods = [member(group, n, 9) for n in range(9)]
        names = [each["metadata"]["name"] for each in pods]
        cluster.add(*pods[1:])
        cluster.pods[names[0]] = read_pod(pods[0])
        cluster.ask_all(names)
        groups.append(pods)
    with mock.patch.object(group_units, "place_members", return_value="none") as search:
        for pods in groups:
            cluster.add(pods[0])
    sets = [{id(each.nodes) for each in call.args[0]} for call in search.call_args_list]
    assert sets
    assert all(len(each) == 1 for each in sets)
    assert policies or len(set().union(*sets)) == 1
    kept = cluster.cache.groups._sets  # noqa: SLF001
    cluster.ask("g1-0", NODES[:1])
    assert len(kept) == 2
    cluster.ask("g1-0")
    cluster.cache.groups.expire(0.0)
    assert len(cluster.cache.groups._sets) == 1  # noqa: SLF001


def test_a_group_goes_whole_to_the_first_unit_that_takes_all_of_it() -> None:
    cluster = Cluster(policy(unit("a", max=5), unit("b", max=3), unit("c")))
    assert cluster.place("g1") == ["a"] * 3
    assert cluster.sums() == [3, 0, 0, 0]
    assert cluster.place("g2") == ["b"] * 3
    assert cluster.place("g3") == ["c"] * 3
    assert cluster.place("g4", size=2) == ["a"] * 2
    [reason] = {*cluster.place("g5", size=8)}
    assert reason == (
        "group g5: ResourcePolicy rule: unit 1 has 5 of its 5 pods, and 8 more are to come; unit 2"
        " has 3 of its 3 pods, and 8 more are to come; unit 3 has no room for all 8; no node"
        " outside has room"
    )
    assert cluster.sums() == [5, 3, 3, 0]


def test_a_group_goes_whole_to_the_nodes_outside_all_units() -> None:
    cluster = Cluster(policy(unit("a", max=1)))
    assert cluster.place("g1", size=17)[0].endswith("17 more are to come; no node outside has room")
    assert {*cluster.place("g2", size=16)} == {"b", "c"}


def test_requests_of_all_pods_count_together() -> None:
    limit = {"aliyun.com/gpu-mem": 27}
    cluster = Cluster(policy(unit("a", maxResources=limit), unit("b"), strategy="required"))
    assert cluster.place("g1", size=2) == ["a"] * 2
    assert cluster.place("g2", size=2) == ["b"] * 2
    [reason] = {*cluster.place("g3", size=8)}
    assert reason == (
        "group g3: ResourcePolicy rule: unit 1 has 14 of its 27 of aliyun.com/gpu-mem, and 8 more"
        " are to come; unit 2 has no room for all 8; no other node may"
    )


@pytest.mark.parametrize(
    ("following", "held"),
    [
        ({}, ""),
        ({"policy": "ExceedMax"}, ", and only its max leads on"),
        ({"policy": "TimeoutOrExceedMax", "timeout": "9s"}, ", and the pod waits up to 9 s for"),
        ({"policy": "LackResourceAndNoTerminating"}, ", and 1 of its pods are ending"),
    ],
)
def test_the_next_unit_is_tried_by_the_rule_of_the_policy(following: Json, held: str) -> None:
    """COS-3: unit 1 has room for one pod alone."""
    cluster = Cluster(policy(unit("a", max=20), unit("b"), whenTryNextUnits=following))
    there = cluster.add(*(member("there", n, 0) for n in range(7)))
    for name in there:
        cluster.bind(name, cluster.ask(name))
    ending = cluster.pods[there[0]]._replace(terminating=True)
    cluster.cache.update_pod(ending)
    answers = cluster.place("g")
    if not held:
        assert answers == ["b"] * 3
        return
    assert f"group g: ResourcePolicy rule: unit 1 has no room for all 3{held}" in answers[0]
    assert cluster.sums()[1] == 0


def test_a_group_whose_time_is_over_is_woken_and_goes_to_the_next_unit() -> None:
    """COS-3: one of its pods is woken, by which all get room."""
    following = {"policy": "TimeoutOrExceedMax", "timeout": "9s"}
    cluster = Cluster(policy(unit("none"), unit("b"), whenTryNextUnits=following))
    assert "waits up to 9 s" in cluster.place("g")[0]
    cluster.rest(8)
    assert cluster.woken == []
    assert "waits up to 9 s" in cluster.ask("g-2")
    cluster.rest(2)
    assert cluster.woken == ["g-0"]
    assert cluster.ask_all(["g-0", "g-1", "g-2"]) == ["b"] * 3
    cluster.rest(20)
    assert cluster.woken == ["g-0"]


def test_a_group_does_not_wait_for_evictions_in_each_unit() -> None:
    """COS-4: nobody is evicted for one of its pods."""
    cluster = Cluster(policy(unit("none"), unit("b"), preemptPolicy="BeforeNextUnit"))
    assert cluster.place("g") == ["b"] * 3


def test_pods_are_counted_apart_by_keys_and_one_that_lacks_a_label_is_refused() -> None:
    """COS-4."""
    cluster = Cluster(policy(unit("a", max=3), unit("b"), matchLabelKeys=["rev"]))
    assert cluster.place("g1", rev="1") == ["a"] * 3
    assert cluster.place("g2", rev="2") == ["a"] * 3
    assert cluster.place("g3", rev="2") == ["b"] * 3
    lacking = "group g4: ResourcePolicy rule: matchLabelKeys has rev, and the pod has no such label"
    assert cluster.place("g4") == [lacking] * 3
    both = [*(member("g5", n, rev="5") for n in range(2)), member("g5", 2, rev="6")]
    cluster.policies.update_policy(
        read_known_policy(policy(unit("c", max=2), matchLabelKeys=["rev"]))
    )
    assert cluster.ask_all(cluster.add(*both)) == ["c"] * 3


def test_pods_of_two_policies_in_one_group_each_follow_their_own() -> None:
    leads = policy(unit("c", max=1), name="leads", selector={"app": "lead"}, strategy="required")
    works = policy(unit("a", max=4), unit("b"), name="works", selector={"app": "x"})
    cluster = Cluster(leads, works)
    both = [member("g1", 0, app="lead"), *(member("g1", n) for n in (1, 2))]
    assert cluster.ask_all(cluster.add(*both)) == ["c", "a", "a"]
    assert (cluster.sums("leads"), cluster.sums("works")) == ([1, 0], [2, 0, 0])
    free = [member("g2", 0, app="free"), *(member("g2", n) for n in (1, 2))]
    assert cluster.ask_all(cluster.add(*free))[1:] == ["a", "a"]
    late = [member("g3", 0, app="lead"), *(member("g3", n) for n in (1, 2))]
    [reason] = {*cluster.ask_all(cluster.add(*late))}
    assert reason.startswith("group g3: ResourcePolicy leads: unit 1 has 1 of its 1 pods")
    assert cluster.sums("works") == [4, 0, 0]


def test_pods_of_two_policies_have_room_beside_each_other() -> None:
    leads = policy(unit("a"), name="leads", selector={"app": "lead"})
    cluster = Cluster(leads, policy(unit("a"), unit("b"), name="works", selector={"app": "x"}))
    both = [member("g", 0, 9, app="lead"), *(member("g", n, 9) for n in range(1, 9))]
    assert cluster.ask_all(cluster.add(*both)) == ["a", *["b"] * 8]


def test_pods_beyond_the_least_number_do_not_keep_the_others_from_a_unit() -> None:
    cluster = Cluster(policy(unit("a", max=3), strategy="required"))
    names = cluster.add(*(member("g", n, 3) for n in range(4)))
    for name in names:
        cluster.ask(name)
    assert [cluster.ask(name)[0] for name in names[:3]] == ["a"] * 3
    assert "unit 1 has 3 of its 3 pods" in cluster.ask(names[3])


def test_what_is_reserved_counts_in_its_unit_until_it_ends() -> None:
    cluster = Cluster(policy(unit("a", max=3), strategy="required"))
    cluster.place("g")
    [single] = cluster.add(member("single", 0, 0))
    assert "unit 1 has 3 of its 3 pods" in cluster.ask(single)
    cluster.cache.forget_expired(HOLD_SECONDS)
    assert "unit 1 has 3 of its 3 pods" in cluster.ask(single)
    cluster.cache.groups.expire(HOLD_SECONDS + 1)
    assert cluster.sums() == [0, 0]
    assert cluster.ask(single)[0] == "a"


@pytest.mark.parametrize("done", [0, 1])
def test_a_policy_that_changes_moves_what_is_reserved_and_binds_nothing_beyond(done: int) -> None:
    cluster = Cluster(policy(unit("a", max=3), unit("b")))
    cluster.place("g")
    to = {name: cluster.ask(name) for name in cluster.pods}
    names = [*to]
    for name in names[:done]:
        assert cluster.bind(name, to[name]) == ""
    changed = policy(unit("a", max=2), unit("b"))
    cluster.policies.update_policy(read_known_policy(changed))
    refused = cluster.bind(names[-1], to[names[-1]])
    assert refused == "ResourcePolicy rule: unit 1 has 2 of its 2 pods"
    assert cluster.ask_all(names[done:]) == ["b"] * (3 - done)
    for name in names[done:]:
        assert cluster.bind(name, cluster.ask(name)) == ""
    assert cluster.sums() == [done, 3 - done, 0]


def test_the_next_leader_counts_what_was_reserved() -> None:
    rules = [policy(unit("a", max=3), unit("b", podLabels={"tier": "b"}), unit("c"))]
    pods = [member(f"g{n}", i) for n in (1, 2) for i in range(3)]

    def make_world() -> World:
        world = World(*pods)
        world.cache.replace_nodes(read_node(node(name, pool=name[0])) for name in NODES)
        world.cache.policies.replace_policies(map(read_known_policy, rules))
        world.cache.replace_pods(map(read_pod, pods))
        return world

    first, second = make_world(), make_world()

    async def begin() -> None:
        for each in pods:
            await first.filter(each, NODES)
        await asyncio.sleep(0.05)

    first.run(begin)
    second.cache.replace_pods(map(read_pod, pods))
    second.cache.restore_reservations(1000.0, time.time())
    rule = second.cache.policies.list_policies()[0]
    assert second.cache.policies.get_counts(rule).sum_units() == [3, 3, 0, 0]

    async def go_on() -> None:
        answers = [await second.filter(each, NODES) for each in pods]
        nodes = [each["NodeNames"][0] for each in answers]
        assert await asyncio.gather(*map(second.bind, pods, nodes)) == [""] * 6

    second.run(go_on)
    tiers = Counter(each["metadata"]["labels"].get("tier", "") for each in pods)
    assert tiers == {"": 3, "b": 3}


def test_no_binding_is_sent_for_what_the_policy_no_longer_allows() -> None:
    given_pod = member("g", 0, 1)
    world = World(given_pod, nodes=NODES)
    world.cache.policies.replace_policies([read_known_policy(policy(unit("none")))])
    world.cache.replace_pods([read_pod(given_pod)])

    async def work() -> None:
        [to] = (await world.filter(given_pod, NODES))["NodeNames"]
        changed = policy(unit("none"), strategy="required")
        world.cache.policies.update_policy(read_known_policy(changed))
        assert "the node is of no unit" in await world.bind(given_pod, to)
        assert world.server.bindings == []

    world.run(work)


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=6),
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 6), min_size=1),
    st.sampled_from(("prefer", "required")),
    st.randoms(use_true_random=False),
)
def test_groups_are_whole_in_one_unit_and_no_unit_has_more_than_its_max(
    sizes: list[int], limits: dict[str, int], strategy: str, chance: random.Random
) -> None:
    """COS-2, COS-7: groups and single pods ask and are bound in any order."""
    units = [unit(pool, max=most) for pool, most in limits.items()]
    cluster = Cluster(policy(*units, strategy=strategy))
    groups = {
        f"g{n}": cluster.add(*(member(f"g{n}", i, size if size > 1 else 0) for i in range(size)))
        for n, size in enumerate(sizes)
    }
    ahead = [name for names in groups.values() for name in names] * 4
    chance.shuffle(ahead)
    for name in ahead:
        cluster.now += 1.0
        pod = cluster.pods[name]
        if pod.node:
            continue
        answer = cluster.ask(name)
        if answer in NODES and chance.random() < 0.7:
            cluster.come(name, answer)
        elif answer in NODES and chance.random() < 0.1 and not pod.group:
            cluster.cache.forget_pod(pod.uid)
        if chance.random() < 0.05:
            cluster.cache.groups.expire(cluster.now + HOLD_SECONDS + 1)
        taken = [each for info in cluster.cache.nodes.values() for each in info.taken.values()]
        for pool, count in Counter(each.node[0] for each in taken).items():
            assert count <= limits.get(pool, 8)
            assert strategy == "prefer" or pool in limits
    for names in groups.values():
        pools = {cluster.pods[name].node[:1] for name in names} - {""}
        assert len({pool if pool in limits else "outside" for pool in pools}) <= 1
