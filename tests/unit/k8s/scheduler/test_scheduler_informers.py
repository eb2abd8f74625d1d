"""The extender's books and fence follow the API server, and start anew with each leader.

K8S-12.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_k8s.apiserver.client import Page
from cgpu_k8s.objects.gpus import OfferedGpu, write_facts
from cgpu_k8s.scheduler import informers
from cgpu_k8s.scheduler.cache import SchedulerCache
from cgpu_k8s.scheduler.informers import ClusterInformer, WatchedLease
from cgpu_k8s.scheduler.leader_lease import LeaderLease

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Json = dict[str, Any]

pytestmark = pytest.mark.unit

NODES, PODS, LEASES, POLICIES = "nodes", "pods", "leases", "resourcepolicies"


def node(name: str, gpus: int = 1, version: int = 1) -> Json:
    facts = [OfferedGpu(f"GPU-{name}-{n}", n, 16160) for n in range(gpus)]
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "labels": {"ack.node.gpu.schedule": "cgpu"},
            "annotations": {"cgpu/gpus": write_facts("cgpu", facts)},
        }
    }


def pod(name: str, version: int = 1, phase: str = "Pending") -> Json:
    limits = {"aliyun.com/gpu-mem": "8"}
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": str(version)},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
        "status": {"phase": phase},
    }


def lease(holder: str, version: int) -> Json:
    spec = {"holderIdentity": holder, "renewTime": f"2026-11-23T21:54:{version:02}.000000Z"}
    return {"metadata": {"name": "s", "uid": "s", "resourceVersion": str(version)}, "spec": spec}


class Stream:
    """An API server whose lists and events the test gives by hand."""

    def __init__(self, **items: list[Json]) -> None:
        self.items: dict[str, list[Json]] = {
            each: items.get(each, []) for each in (NODES, PODS, LEASES, POLICIES)
        }
        self.events: dict[str, asyncio.Queue[Json]] = {kind: asyncio.Queue() for kind in self.items}
        self.lists: list[str] = []
        self.selected: dict[str, str] = {}
        self.may_list = asyncio.Event()
        self.may_list.set()

    async def list_pages(
        self, path: str, query: dict[str, str] | None = None
    ) -> AsyncIterator[Page]:
        kind = path.rpartition("/")[2]
        await self.may_list.wait()
        self.lists.append(kind)
        self.selected[kind] = (query or {}).get("fieldSelector", "")
        yield Page(list(self.items[kind]), "1")

    async def stream_lines(
        self, path: str, query: dict[str, str], silence: float
    ) -> AsyncIterator[Json]:
        assert query["watch"] == "true"
        assert silence > 0
        while True:
            yield await self.events[path.rpartition("/")[2]].get()

    def send(self, kind: str, change: str, item: Json) -> None:
        self.events[kind].put_nowait({"type": change, "object": item})


async def until(true: Callable[[], object]) -> None:
    async def wait() -> None:
        while not true():  # noqa: ASYNC110 (nothing in the product waits for tests)
            await asyncio.sleep(0.001)

    await asyncio.wait_for(wait(), 20)


def follow(
    work: Callable[[Stream, SchedulerCache, ClusterInformer, list[str]], Awaitable[None]],
    leader_lease: LeaderLease | None = None,
    **items: list[Json],
) -> None:
    """Do some work while the books follow a stream."""

    async def run() -> None:
        stream, cache, log = Stream(**items), SchedulerCache(), list[str]()
        held = WatchedLease("kube-system", "s", leader_lease) if leader_lease else None
        followed = ClusterInformer(
            stream,  # type: ignore[arg-type]
            cache,
            held,
            lambda event, fields: log.append(f"{event} {fields.get('kind', '')}"),
        )
        assert followed.find_missing()

        async def resolve(older: float) -> None:
            log.append(f"resolve {older:.0f}")

        task = asyncio.ensure_future(followed.run(resolve))
        try:
            await work(stream, cache, followed, log)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


def test_books_have_what_is_listed_and_every_change_after_it() -> None:
    async def work(
        stream: Stream, cache: SchedulerCache, followed: ClusterInformer, log: list[str]
    ) -> None:
        await until(lambda: not followed.find_missing())
        assert (set(cache.offers), set(cache.pods)) == ({"a"}, {"p"})
        assert set(followed.get_heard_times()) == {NODES, PODS}
        stream.send(NODES, "ADDED", node("b"))
        stream.send(NODES, "MODIFIED", node("a", 2, 2))
        stream.send(PODS, "ADDED", pod("q"))
        stream.send(PODS, "MODIFIED", pod("p", 2, "Failed"))
        await until(lambda: set(cache.pods) == {"q"} and len(cache.offers) == 2)
        assert len(cache.offers["a"].gpus) == 2
        stream.send(NODES, "DELETED", node("a", 2, 3))
        stream.send(PODS, "DELETED", pod("q", 3))
        await until(lambda: not cache.pods and set(cache.offers) == {"b"})
        assert sorted(log) == ["listed nodes", "listed pods", "listed policies"]

    follow(work, nodes=[node("a")], pods=[pod("p")])


def test_an_object_that_cannot_be_read_is_logged_and_left_out() -> None:
    wrong = node("w")
    wrong["metadata"]["labels"] = []
    bad = pod("bad")
    bad["spec"] = 3

    async def work(
        stream: Stream, cache: SchedulerCache, followed: ClusterInformer, log: list[str]
    ) -> None:
        await until(lambda: not followed.find_missing())
        assert set(cache.offers) == {"a"}
        stream.send(NODES, "DELETED", {**wrong, "metadata": {**wrong["metadata"], "labels": []}})
        stream.send(PODS, "ADDED", pod("p"))
        await until(lambda: cache.pods)
        assert log.count("object_not_read nodes") >= 1
        assert log.count("object_not_read pods") == 1

    follow(work, nodes=[node("a"), wrong], pods=[bad])


def test_nothing_is_listed_before_it_is_known_who_leads_and_all_again_for_a_new_leader() -> None:
    leader_lease = LeaderLease("host-1")

    async def work(
        stream: Stream, cache: SchedulerCache, followed: ClusterInformer, log: list[str]
    ) -> None:
        await until(lambda: not followed.find_missing())
        assert stream.lists[0] == LEASES
        assert stream.selected == {
            LEASES: "metadata.name=s",
            NODES: "",
            PODS: "",
            POLICIES: "",
        }
        assert leader_lease.holder == "host-2_x"
        stream.items[PODS] = [pod("bound-by-the-leader-before")]
        stream.may_list.clear()
        stream.send(LEASES, "MODIFIED", lease("host-1_x", 2))
        await until(lambda: leader_lease.is_leading)
        await until(followed.find_missing)
        await until(lambda: "again" not in followed.find_missing())
        assert followed.find_missing() == (
            "the API server has not listed nodes and pods and policies yet"
        )
        assert "bound-by-the-leader-before" not in cache.pods
        stream.may_list.set()
        await until(lambda: not followed.find_missing())
        assert set(cache.pods) == {"bound-by-the-leader-before"}
        assert sorted(stream.lists) == [LEASES, *2 * [NODES], *2 * [PODS], *2 * [POLICIES]]
        stream.send(LEASES, "MODIFIED", lease("host-1_x", 3))  # a renewal lists nothing
        stream.send(LEASES, "DELETED", lease("host-1_x", 4))
        await until(lambda: not leader_lease.holder)
        assert len(stream.lists) == 7
        assert "leads " in log

    follow(work, leader_lease, leases=[lease("host-2_x", 1)])


def test_parts_that_nobody_asks_for_and_bindings_that_are_not_seen_are_looked_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(informers, "PERIOD", 0.001)
    expired: list[float] = []

    async def work(
        stream: Stream, cache: SchedulerCache, followed: ClusterInformer, log: list[str]
    ) -> None:
        assert stream
        assert followed
        monkeypatch.setattr(cache, "forget_expired", expired.append)
        await until(lambda: "resolve 15" in log and expired)

    follow(work)
