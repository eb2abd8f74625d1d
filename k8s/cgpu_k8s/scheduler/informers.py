"""Keeps the cache and the state of the lease up to date by watches of the API server."""

from __future__ import annotations

import asyncio
import gc
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from cgpu_env.errors import CgpuError
from cgpu_k8s.apiserver.resources import LEASES, NODES, PODS, RESOURCE_POLICIES
from cgpu_k8s.apiserver.tasks import cancel_tasks, run_together
from cgpu_k8s.apiserver.watch import DELETED, Listed, Watch
from cgpu_k8s.objects.fields import ObjectError
from cgpu_k8s.objects.nodes import read_node
from cgpu_k8s.objects.pods import read_pod
from cgpu_k8s.scheduler.leader_lease import read_clock
from cgpu_k8s.scheduler.policies.policy_informer import PolicyInformer, read_known_policy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cgpu_k8s.apiserver.client import Client, Json
    from cgpu_k8s.scheduler.cache import SchedulerCache
    from cgpu_k8s.scheduler.leader_lease import LeaderLease

    Report = Callable[[str, dict[str, object]], None]

T = TypeVar("T")
KEPT = 120.0  # seconds for which a share is assumed without a call of bind
READ = 15.0  # seconds after which a pod is read if its binding was sent and is not seen
PERIOD = 5.0  # seconds between two checks of what is assumed


class WatchedLease(NamedTuple):
    """The name of a scheduler's lease, and the state of the lease."""

    namespace: str
    name: str
    leader_lease: LeaderLease


class ClusterInformer:
    """Keeps the cache up to date.

    Args:
        client: a client of the API server.
        cache: the scheduler's cache.
        lease: the lease of our scheduler; None if it is the only one, which has no lease.
        report: writes a line of the log.
    """

    def __init__(
        self, client: Client, cache: SchedulerCache, lease: WatchedLease | None, report: Report
    ) -> None:
        self._client, self._cache, self._lease, self._report = client, cache, lease, report
        self._watches: dict[str, Watch[Any]] = {}
        self._listed: set[str] = set()
        self._restored = False
        self._anew = asyncio.Event()
        self._policies = PolicyInformer(client, cache.policies, report)
        if lease is None:
            self._anew.set()

    def get_heard_times(self) -> dict[str, float | None]:
        """Return when the API server last sent anything (``time.monotonic()``), by kind of object.

        Policies are left out, because their watch is silent until somebody changes one.
        """
        return {kind: each.heard for kind, each in self._watches.items() if kind != "policies"}

    def find_missing(self) -> str:
        """Return a sentence on what was not listed since our scheduler began to lead, else ""."""
        if self._anew.is_set():
            return "nodes and pods are to be listed again"
        ahead = sorted({"nodes", "pods", "policies"} - self._listed)
        return f"the API server has not listed {' and '.join(ahead)} yet" if ahead else ""

    async def run(self, resolve: Callable[[float], Awaitable[None]]) -> None:
        """Keep the cache up to date until cancelled.

        Args:
            resolve: reads the pods whose bindings were sent over so many seconds ago and are not
                seen.
        """
        works = [
            self._follow_objects(),
            self._policies.list_namespaces(),
            self._clean_reservations(resolve),
        ]
        if self._lease:
            works.append(self._follow_lease(self._lease))
        await run_together(*works)

    async def _follow_objects(self) -> None:
        """Watch nodes, policies and pods; list them anew whenever our scheduler begins to lead.

        A new list has all bindings of the previous leader. The old watch may not have shown them.
        """
        while True:
            await self._anew.wait()
            self._listed.clear()
            self._restored = False
            self._policies.listed.clear()
            self._anew.clear()
            works = (self._follow_nodes(), self._follow_policies(), self._follow_pods())
            every = asyncio.ensure_future(run_together(*works))
            again = asyncio.ensure_future(self._anew.wait())
            try:
                await asyncio.wait((every, again), return_when=asyncio.FIRST_COMPLETED)
                if every.done():
                    every.result()  # raises its error
            finally:
                await cancel_tasks(every, again)

    async def _follow_nodes(self) -> None:
        cache = self._cache
        watch = self._make_watch("nodes", NODES.path(), read_node)
        async with aclosing(aiter(watch)) as events:
            async for event in events:
                if isinstance(event, Listed):
                    cache.replace_nodes(each for each in event.items if each)
                    self._mark_listed("nodes", len(event.items))
                elif event.item and event.kind == DELETED:
                    cache.remove_node(event.item.name)
                elif event.item:
                    cache.update_node(event.item)

    async def _follow_policies(self) -> None:
        watch = self._make_watch("policies", RESOURCE_POLICIES.path(), read_known_policy)
        await self._policies.follow_policies(
            watch,
            lambda count: self._mark_listed("policies", count),
            lambda: "pods" in self._listed,
        )

    async def _follow_pods(self) -> None:
        """Watch the pods, once it is known which namespaces have policies."""
        await self._policies.listed.wait()
        cache = self._cache
        watch = self._make_watch("pods", PODS.path(), read_pod)
        async with aclosing(aiter(watch)) as events:
            async for event in events:
                if isinstance(event, Listed):
                    cache.replace_pods(each for each in event.items if each)
                    self._mark_listed("pods", len(cache.pods))
                elif event.item and event.kind == DELETED:
                    cache.remove_pod(event.item.uid)
                elif event.item:
                    cache.update_pod(event.item)

    def _mark_listed(self, kind: str, count: int) -> None:
        self._listed.add(kind)
        if not self._restored and {"nodes", "pods"} <= self._listed:
            self._cache.restore_reservations(time.monotonic(), time.time())
            self._restored = True
        self._report("listed", {"kind": kind, "count": count})
        gc.collect()
        gc.freeze()  # a full collection of 10,000 pods would delay answers by some 50 ms

    async def _follow_lease(self, lease: WatchedLease) -> None:
        where = LEASES.path(namespace=lease.namespace)
        watch = self._make_watch("lease", where, _keep_object, f"metadata.name={lease.name}")
        async with aclosing(aiter(watch)) as events:
            first = True
            async for event in events:
                if isinstance(event, Listed):
                    found = event.items[0] if event.items else None
                else:
                    found = None if event.kind == DELETED else event.item
                if self._has_begun(lease.leader_lease, found):
                    self._report("leads", {"holder": lease.leader_lease.holder})
                    self._anew.set()
                elif first:
                    self._anew.set()
                first = False

    def _has_begun(self, leader_lease: LeaderLease, item: Json | None) -> bool:
        """Update from the lease or its absence; return whether our scheduler begins to lead."""
        if item is None:
            leader_lease.clear_lease()
            return False
        try:
            return leader_lease.update_lease(item, read_clock())
        except ObjectError as error:
            self._report("object_not_read", {"kind": "lease", "error": error})
            return False

    def _make_watch(
        self, kind: str, path: str, read: Callable[[Json], T], field: str = ""
    ) -> Watch[T | None]:
        """Return a watch. It logs each object that cannot be read, and yields None for it."""

        def try_read(item: Json) -> T | None:
            try:
                return read(item)
            except ObjectError as error:
                self._report("object_not_read", {"kind": kind, "error": error})
                return None

        def report_error(error: CgpuError) -> None:
            self._report("watch_failed", {"kind": kind, "error": error})

        watch = self._watches[kind] = Watch(
            self._client,
            path,
            try_read,
            {"fieldSelector": field} if field else {},
            report=report_error,
        )
        return watch

    async def _clean_reservations(self, resolve: Callable[[float], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(PERIOD)
            self._cache.forget_expired(time.monotonic() - KEPT)
            self._cache.groups.expire(time.monotonic())
            await resolve(READ)


def _keep_object(item: Json) -> Json:
    return item
