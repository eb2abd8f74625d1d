"""The extender's policies follow the API server, also one that does not have the kind.

COS-1, COS-9.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_k8s.apiserver.errors import UnreachableError
from cgpu_k8s.apiserver.resources import NAMESPACES, NODES, PODS, RESOURCE_POLICIES
from cgpu_k8s.objects.pods import read_pod
from cgpu_k8s.scheduler.cache import SchedulerCache
from cgpu_k8s.scheduler.informers import ClusterInformer
from cgpu_k8s.scheduler.policies import policy_informer
from lab.cluster.in_memory import InMemory
from lab.kubernetes.store import KINDS, Key
from lab.runs import virtual_time
from lab.worlds.extender import node, pod, policy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

pytestmark = pytest.mark.unit

Json = dict[str, Any]
KIND = ("scheduling.alibabacloud.com", "resourcepolicies")


def create(api: InMemory, resource: Any, item: Json) -> Json:
    kind = KINDS[resource.group, resource.plural]
    item["metadata"].pop("uid", None)
    namespace = item["metadata"].get("namespace", "")
    return api.change(lambda store: store.create(kind, namespace, item))


def delete(api: InMemory, resource: Any, name: str) -> None:
    kind = KINDS[resource.group, resource.plural]
    api.change(lambda store: store.delete(Key(kind, "ns", name), {}))


def follow(
    work: Callable[[InMemory, SchedulerCache, ClusterInformer, list[str]], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Do some work while a cache follows an API server."""

    async def run() -> None:
        api, cache, log = InMemory(), SchedulerCache(), list[str]()
        for name in ("ns", "other"):
            create(api, NAMESPACES, {"metadata": {"name": name}})
        create(api, NODES, node("a", pool="a"))
        client: Any = api
        following = ClusterInformer(
            client,
            cache,
            None,
            lambda event, fields: log.append(f"{event} {fields.get('kind', '')}"),
        )

        async def resolve(_: float) -> None:
            pass

        task = asyncio.ensure_future(following.run(resolve))
        try:
            await work(api, cache, following, log)
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    virtual_time.run(run(), monkeypatch)


def test_policies_and_all_pods_of_their_namespaces_are_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """COS-1: pods without GPUs, too, and those of no other namespace."""

    async def work(
        api: InMemory, cache: SchedulerCache, following: ClusterInformer, log: list[str]
    ) -> None:
        first = create(api, PODS, pod("first", None))
        create(api, PODS, {**pod("other", None), "metadata": {"name": "o", "namespace": "other"}})
        await asyncio.sleep(1)
        assert following.find_missing() == ""
        assert cache.policies.pods == {}
        create(api, RESOURCE_POLICIES, policy({"nodeSelector": {"pool": "a"}}))
        await asyncio.sleep(1)
        assert set(cache.policies.pods) == {"ns"}
        assert set(cache.policies.pods["ns"]) == {first["metadata"]["uid"]}
        assert cache.policies.find_unlisted("ns") == ""
        second = create(api, PODS, pod("second", None))
        await asyncio.sleep(1)
        uids = {each["metadata"]["uid"] for each in (first, second)}
        assert set(cache.policies.pods["ns"]) == uids
        delete(api, RESOURCE_POLICIES, "rule")
        await asyncio.sleep(1)
        assert cache.policies.pods == {}
        assert log.count("watch_failed pods") == 0

    follow(work, monkeypatch)


def test_pods_are_listed_once_if_their_policies_were_there_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """COS-1."""

    async def work(
        api: InMemory, cache: SchedulerCache, following: ClusterInformer, log: list[str]
    ) -> None:
        list_pages = api.list_pages

        async def list_policies_late(path: str, query: Any = None) -> Any:
            await asyncio.sleep(5 * (path == RESOURCE_POLICIES.path()))
            async for page in list_pages(path, query):
                yield page

        monkeypatch.setattr(api, "list_pages", list_policies_late)
        create(api, RESOURCE_POLICIES, policy({}))
        create(api, PODS, pod("first", None))
        await asyncio.sleep(1)
        assert following.find_missing() == "the API server has not listed pods and policies yet"
        await asyncio.sleep(5)
        assert following.find_missing() == ""
        assert len(cache.policies.pods["ns"]) == 1
        listed = {each.path for each in api.calls if each.path.endswith("/pods")}
        assert listed == {PODS.path()}
        assert log

    follow(work, monkeypatch)


def test_a_namespace_whose_pods_cannot_be_listed_is_listed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(
        api: InMemory, cache: SchedulerCache, following: ClusterInformer, log: list[str]
    ) -> None:
        assert following
        first = create(api, PODS, pod("first", None))
        await asyncio.sleep(1)
        create(api, RESOURCE_POLICIES, policy({}))
        list_pages, faults = api.list_pages, 3

        async def fail_first(path: str, query: Any = None) -> Any:
            nonlocal faults
            if faults and path.endswith("/ns/pods"):
                faults -= 1
                raise UnreachableError("away")
            async for page in list_pages(path, query or {}):
                yield page

        monkeypatch.setattr(api, "list_pages", fail_first)
        await asyncio.sleep(1)
        assert cache.policies.find_unlisted("ns")
        await asyncio.sleep(4)
        assert set(cache.policies.pods["ns"]) == {first["metadata"]["uid"]}
        assert log.count("watch_failed pods") == 3

    follow(work, monkeypatch)


def test_a_cluster_without_the_kind_has_no_policies_and_is_seldom_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """COS-9: neither a line of the log nor a request every second."""
    kind = KINDS.pop(KIND)

    async def work(
        api: InMemory, cache: SchedulerCache, following: ClusterInformer, log: list[str]
    ) -> None:
        await asyncio.sleep(1)
        assert following.find_missing() == ""
        await asyncio.sleep(600)
        asked = [each for each in api.calls if each.path == RESOURCE_POLICIES.path()]
        assert len(asked) <= 600 / 30 + 2
        assert log.count("watch_failed policies") == 0
        assert log.count("listed policies") == 1
        KINDS[KIND] = kind
        create(api, PODS, pod("first", None))
        create(api, RESOURCE_POLICIES, policy({}))
        await asyncio.sleep(31)
        assert [len(pods) for pods in cache.policies.pods.values()] == [1]

    try:
        follow(work, monkeypatch)
    finally:
        KINDS[KIND] = kind


def test_a_policy_that_cannot_be_followed_counts_nothing_and_says_why() -> None:
    """COS-9."""
    given = policy({"max": 0})
    known = policy_informer.read_known_policy(given)
    assert known.policy is None
    assert known.problem == (
        "the policy is ignored: spec.units[0].max=0: expected a whole number from 1, or no max"
    )
    cache = SchedulerCache()
    cache.policies.update_policy(known)
    assert cache.policies.list_unlisted() == ["ns"]


def test_what_was_removed_or_bound_while_its_namespace_was_listed_stays_so() -> None:
    """COS-1: the list may be older than the events."""
    policies = SchedulerCache().policies
    policies.update_policy(policy_informer.read_known_policy(policy({})))
    old = [read_pod(pod(name, None)) for name in ("gone", "bound", "same")]
    policies.update_pod(old[0])
    policies.remove_pod(old[0].uid)
    policies.update_pod(old[1]._replace(node="a", terminating=True))
    policies.take_namespace("ns", [old[0], old[1]._replace(node="a"), old[2]])
    assert policies.pods["ns"]["uid-bound"].terminating
    assert {uid: each.node for uid, each in policies.pods["ns"].items()} == {
        "uid-bound": "a",
        "uid-same": "",
    }
