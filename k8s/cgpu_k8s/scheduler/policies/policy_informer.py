"""Keeps the policy cache up to date: watches policies, and lists pods of new namespaces."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from cgpu_env.errors import CgpuError
from cgpu_k8s.apiserver.errors import NotFoundError
from cgpu_k8s.apiserver.resources import PODS
from cgpu_k8s.apiserver.watch import DELETED, Listed
from cgpu_k8s.objects.fields import ObjectError, get_member
from cgpu_k8s.objects.pods import Pod, read_pod
from cgpu_k8s.objects.policies import PolicyError, read_policy
from cgpu_k8s.scheduler.policies.policy_records import KnownPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from cgpu_k8s.apiserver.client import Client, Json
    from cgpu_k8s.apiserver.errors import ApiError, ConfigurationError
    from cgpu_k8s.apiserver.watch import Watch
    from cgpu_k8s.scheduler.policies.policy_cache import PolicyCache

    Report = Callable[[str, dict[str, object]], None]

ABSENT = 30.0  # seconds after which a cluster without the kind is asked again
AGAIN = 1.0  # seconds after which a list that failed is tried again


def read_known_policy(item: Json) -> KnownPolicy:
    """Read a policy's object, even if the policy is invalid.

    Raises:
        ObjectError: its metadata or status is malformed.
    """
    meta = get_member(item, "metadata", dict)
    policy, problem = None, ""
    try:
        policy = read_policy(item)
    except PolicyError as error:
        problem = f"the policy is ignored: {error}"
    return KnownPolicy(
        get_member(meta, "namespace", str),
        get_member(meta, "name", str),
        get_member(meta, "uid", str),
        policy,
        problem,
        get_member(item, "status", dict),
    )


class PolicyInformer:
    """Keeps the policy cache up to date.

    Args:
        client: a client of the API server.
        policies: the policies of the cluster.
        report: writes a line of the log.

    Attributes:
        listed: is set once the policies are listed, or the cluster is found to lack the kind.
    """

    def __init__(self, client: Client, policies: PolicyCache, report: Report) -> None:
        self._client, self._policies, self._report = client, policies, report
        self.listed = asyncio.Event()
        self._is_absent = False
        self._added = asyncio.Event()

    async def follow_policies(
        self,
        watch: Watch[KnownPolicy | None],
        mark_listed: Callable[[int], None],
        has_pods: Callable[[], bool],
    ) -> None:
        """Update the cache from a watch of the policies until cancelled.

        Args:
            watch: the watch.
            mark_listed: is called after a list, with the number of policies.
            has_pods: returns whether all pods were listed. After that, the pods of a namespace that
                gets its first policy are listed separately.
        """
        self._be_patient(watch, mark_listed)
        policies = self._policies
        async with aclosing(aiter(watch)) as events:
            async for event in events:
                self._is_absent = False
                if isinstance(event, Listed):
                    policies.replace_policies(each for each in event.items if each)
                    mark_listed(len(event.items))
                    self.listed.set()
                elif event.item and event.kind == DELETED:
                    policies.remove_policy(event.item.namespace, event.item.name)
                elif event.item:
                    policies.update_policy(event.item)
                if policies.list_unlisted() and has_pods():
                    self._added.set()

    def _be_patient(
        self, watch: Watch[KnownPolicy | None], mark_listed: Callable[[int], None]
    ) -> None:
        """Make a watch treat a cluster without the kind as one without policies."""
        report = watch.report

        def report_error(error: ApiError | ConfigurationError) -> None:
            self._is_absent = isinstance(error, NotFoundError)
            if not self._is_absent:
                report(error)
                return
            self._policies.replace_policies(())
            if not self.listed.is_set():
                mark_listed(0)
                self.listed.set()

        async def pause(seconds: float) -> None:
            await asyncio.sleep(ABSENT if self._is_absent else seconds)

        watch.report, watch.sleep = report_error, pause

    async def list_namespaces(self) -> None:
        """List the pods of namespaces that get their first policy after all pods were listed.

        This goes on until cancelled.
        """
        while True:
            await self._added.wait()
            self._added.clear()
            for namespace in self._policies.list_unlisted():
                await self._list_namespace(namespace)

    async def _list_namespace(self, namespace: str) -> None:
        found = list[Pod]()
        try:
            async with aclosing(self._client.list_pages(PODS.path(namespace=namespace))) as pages:
                async for page in pages:
                    found += filter(None, map(self._read_pod, page.items))
        except CgpuError as error:
            self._report("watch_failed", {"kind": "pods", "error": error})
            await asyncio.sleep(AGAIN)
            self._added.set()
        else:
            self._policies.take_namespace(namespace, found)

    def _read_pod(self, item: Json) -> Pod | None:
        try:
            return read_pod(item)
        except ObjectError as error:
            self._report("object_not_read", {"kind": "pods", "error": error})
            return None
