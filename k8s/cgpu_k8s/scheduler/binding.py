"""Binds a pod to its node and writes its allocation, both in one request.

The API server merges a Binding's annotations into the pod in the same write. It binds a pod only
once: a second Binding gets a conflict and changes nothing.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from cgpu_env.errors import CgpuError
from cgpu_k8s.apiserver.errors import ApiError, ConflictError, NotFoundError
from cgpu_k8s.apiserver.resources import PODS
from cgpu_k8s.objects.allocations import write_annotations
from cgpu_k8s.objects.pod_request import PodRequestError
from cgpu_k8s.objects.pods import read_pod
from cgpu_k8s.scheduler.allocation import Refusal
from cgpu_k8s.scheduler.leader_lease import LeaderClient, NotLeadingError
from cgpu_k8s.scheduler.placing import allocate_for_binding, make_plain_allocation
from cgpu_k8s.scheduler.policies.pod_writes import list_unit_writes
from cgpu_k8s.scheduler.policies.unit_choices import check_binding
from cgpu_k8s.scheduler.reservations import ReservationWriter, await_group

if TYPE_CHECKING:
    from collections.abc import Callable

    from cgpu_k8s.objects.allocations import Allocation
    from cgpu_k8s.objects.pods import Pod
    from cgpu_k8s.scheduler.cache import SchedulerCache
    from cgpu_k8s.scheduler.extender_api import ExtenderBindingArgs
    from cgpu_k8s.scheduler.leader_lease import WritingClient

    Json = dict[str, Any]

ON_ITS_WAY = 60.0  # seconds in which the API server may still carry out an unanswered request
DONE, REPEATED, REFUSED, FAILED, UNKNOWN = "done", "repeated", "refused", "failed", "unknown"


class BindError(CgpuError):
    """A pod was not bound, or may not have been. The message is one sentence.

    Attributes:
        outcome: REFUSED by us, FAILED by the API server, or UNKNOWN.
    """

    def __init__(self, outcome: str, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


class Binder:
    """Binds pods.

    Args:
        cache: the scheduler's cache.
        api: a client of the API server.
        problem: returns why no pod may be bound now; "" if pods may.
        clock: returns monotonic seconds.

    Attributes:
        reservations: writes the reservations of groups.
    """

    def __init__(
        self,
        cache: SchedulerCache,
        api: WritingClient,
        problem: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache, self._api, self._clock = cache, LeaderClient(api, problem), clock
        self.reservations = ReservationWriter(cache, self._api)

    async def bind(self, asked: ExtenderBindingArgs, began: float) -> str:
        """Bind a pod to the node that its scheduler chose, a pod of a group with the others.

        Args:
            asked: the pod and the node.
            began: when the scheduler's call began, in monotonic seconds.

        Returns:
            DONE, or REPEATED if the pod is found to be bound there already.

        Raises:
            BindError: the pod is not bound there, or the outcome is unknown.
        """
        if self._is_done(asked):
            return REPEATED
        pod = await self._find_pod(asked)
        if pod.group and (problem := await self.reservations.write_group(pod.group)):
            raise BindError(FAILED, f"what its group has cannot be written: {problem}")
        problem = await self._wait_for_group(pod, asked.node, began)
        if problem := problem or check_binding(self._cache.policies, pod, asked.node):
            raise BindError(REFUSED, problem)
        if not pod.asks_for_gpu:
            if self._cache.policies.find_policy(pod):
                promised = make_plain_allocation(pod, asked.node)
                self._cache.mark_sent(pod, promised, self._clock())
            return await self._send_binding(asked, {})
        try:
            allocation = allocate_for_binding(self._cache, pod, asked.node, self._clock())
        except PodRequestError as error:
            raise BindError(REFUSED, str(error)) from None
        if isinstance(allocation, Refusal):
            raise BindError(REFUSED, allocation.sentence)
        return await self._send_binding(asked, self._make_annotations(pod, allocation))

    async def _wait_for_group(self, pod: Pod, node: str, began: float) -> str:
        """Wait for a group's other pods if a pod is to get what is reserved for it on this node.

        Return why it must not be bound; "" if nothing is known against it.
        """
        assumed = self._cache.assumed.get(pod.uid)
        if not assumed or not assumed.in_group or assumed.allocation.node != node:
            return ""
        if problem := check_binding(self._cache.policies, pod, node):
            return problem
        return await await_group(self._cache, self._api, pod.uid, began)

    def _make_annotations(self, pod: Pod, allocation: Allocation) -> dict[str, str]:
        gpus = self._cache.offers[allocation.node].gpus
        try:
            return write_annotations(allocation, pod, gpus, time.time_ns())
        except CgpuError as error:  # a name in the allocation is not allowed
            self._cache.mark_refused(pod.uid)
            raise BindError(REFUSED, f"the decision cannot be written: {error}") from None

    def _is_done(self, asked: ExtenderBindingArgs) -> bool:
        known = self._cache.bound.get(asked.uid)
        return known is not None and known.node == asked.node

    async def _find_pod(self, asked: ExtenderBindingArgs) -> Pod:
        assumed = self._cache.assumed.get(asked.uid)
        known = self._cache.pods.get(asked.uid) or (assumed and assumed.pod)
        known = known or self._cache.plain.pop(asked.uid, None)
        if known:
            return known
        try:
            found = read_pod(await self._api.get(_make_path(asked)))
        except CgpuError as error:
            raise BindError(FAILED, str(error)) from None
        if found.uid != asked.uid:
            raise BindError(REFUSED, f"PodUID={asked.uid}: the pod of this name is {found.uid}")
        return found

    async def _send_binding(self, asked: ExtenderBindingArgs, notes: dict[str, str]) -> str:
        labels, of_unit = list_unit_writes(self._cache.policies, asked.uid)
        body = _make_binding(asked, {**of_unit, **notes})
        if labels:
            await self._label_pod(asked, labels)
        try:
            await self._api.post(_make_path(asked, "binding"), body)
        except ConflictError:
            return await self._resolve_conflict(asked)
        except CgpuError as error:
            if not isinstance(error, ApiError) or error.sure:
                raise self._give_up(asked, error) from None
            done, _ = await self._verify_binding(asked)
            if done:
                return REPEATED
            raise BindError(
                UNKNOWN, f"{error}; its part stays reserved until the pod shows the outcome"
            ) from None
        return DONE

    async def _label_pod(self, asked: ExtenderBindingArgs, labels: dict[str, str | None]) -> None:
        """Write a unit's labels before the binding: the pod counts in the unit only with them."""
        change = {"metadata": {"uid": asked.uid, "labels": labels}}
        try:
            await self._api.patch(_make_path(asked), change)
        except CgpuError as error:
            raise self._give_up(asked, error) from None

    def _give_up(self, asked: ExtenderBindingArgs, error: CgpuError) -> BindError:
        """Forget the share of a pod that was surely not bound, and return the error."""
        self._cache.mark_refused(asked.uid)
        return BindError(REFUSED if isinstance(error, NotLeadingError) else FAILED, str(error))

    async def _resolve_conflict(self, asked: ExtenderBindingArgs) -> str:
        """Return REPEATED if the pod is already bound as asked; raise BindError if it is not."""
        done, node = await self._verify_binding(asked)
        if done:
            return REPEATED
        where = f" to {node}" if node else ""
        raise BindError(FAILED, f"the pod is bound already{where}, not by this decision")

    async def _verify_binding(self, asked: ExtenderBindingArgs) -> tuple[bool, str]:
        """Update the pod in the cache; return whether it is bound as asked, and its node."""
        try:
            found = await self._refresh_pod(asked.namespace, asked.name, asked.uid)
        except CgpuError:
            return False, ""
        if found is None:
            return False, ""
        has = not found.asks_for_gpu or self._cache.has_share(found.uid)
        return found.node == asked.node and has, found.node

    async def _refresh_pod(self, namespace: str, name: str, uid: str) -> Pod | None:
        """Update a pod in the cache from the API server; return it, or None if it is gone."""
        try:
            found = read_pod(await self._api.get(PODS.path(name, namespace=namespace)))
        except NotFoundError:
            found = None
        if found is None or found.uid != uid:
            self._cache.remove_pod(uid)
            return None
        self._cache.confirm_pod(found, self._clock())
        return found

    async def resolve_unconfirmed(self, older: float) -> None:
        """Read pods whose bindings were sent over ``older`` seconds ago and are not confirmed yet.

        Forget the share of a pod that is not bound ON_ITS_WAY seconds after the last attempt. Also
        write the reservations of groups that are not written yet.
        """
        await self.reservations.write_all()
        now, cache = self._clock(), self._cache
        for each in cache.list_unconfirmed(now - older):
            known = await self._try_refresh(each.pod) and cache.assumed.get(each.pod.uid)
            if known == each and now - each.since > ON_ITS_WAY:
                cache.forget_pod(each.pod.uid)

    async def _try_refresh(self, pod: Pod) -> bool:
        """Update a pod in the cache; return False if the API server does not answer."""
        try:
            await self._refresh_pod(pod.namespace, pod.name, pod.uid)
        except CgpuError:
            return False
        return True


def _make_path(asked: ExtenderBindingArgs, part: str = "") -> str:
    return PODS.path(asked.name, namespace=asked.namespace, part=part)


def _make_binding(asked: ExtenderBindingArgs, notes: dict[str, str]) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": asked.name,
            "namespace": asked.namespace,
            "uid": asked.uid,
            "annotations": notes,
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": asked.node},
    }
