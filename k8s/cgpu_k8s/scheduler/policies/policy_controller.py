"""Writes what follows from ResourcePolicies: deletion costs, wake-ups, tolerations and status.

The controller writes only while its scheduler leads, and only what has changed.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from cgpu_env.errors import CgpuError
from cgpu_k8s.apiserver.errors import NotFoundError
from cgpu_k8s.apiserver.resources import EVENTS, PODS, RESOURCE_POLICIES
from cgpu_k8s.names import RETRY, SCHEDULERS, VIRTUAL_TAINT
from cgpu_k8s.objects.fields import get_member, get_objects
from cgpu_k8s.objects.policies import BEFORE_NEXT, ECS
from cgpu_k8s.scheduler.leader_lease import LeaderClient, NotLeadingError
from cgpu_k8s.scheduler.policies.pod_writes import write_cost
from cgpu_k8s.scheduler.policies.policy_status import make_event, make_status, make_status_change
from cgpu_k8s.scheduler.units import ENDING

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping

    from cgpu_k8s.objects.pods import Pod
    from cgpu_k8s.scheduler.leader_lease import WritingClient
    from cgpu_k8s.scheduler.policies.policy_cache import PolicyCache
    from cgpu_k8s.scheduler.policies.policy_records import KnownPolicy, UnitWait

    Json = dict[str, Any]
    Report = Callable[[str, dict[str, object]], None]
    Writes = Iterator[Coroutine[None, None, None]]  # each write is made before the next is found

LOOK = 1.0  # seconds between two looks at what has changed
AGAIN = 10.0  # seconds after which failed writes are tried again


class PolicyController:
    """Writes to pods and policies what the policies require.

    Args:
        api: a client of the API server.
        policies: the policies of the cluster.
        problem: returns why nothing may be written now; "" if writes are allowed.
        report: writes a line of the log.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        api: WritingClient,
        policies: PolicyCache,
        problem: Callable[[], str],
        report: Report,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._policies = LeaderClient(api, problem), policies
        self._report, self._clock = report, clock
        self._delayed: dict[str, float] = {}  # when to try again, by namespace
        self._tolerant: set[str] = set()  # UIDs of pods that have the tolerations that they need
        self._warned: dict[str, str] = {}  # the message of the last event, by UID of the policy

    async def run(self) -> None:
        """Write changes every LOOK seconds until cancelled."""
        while True:
            await asyncio.sleep(LOOK)
            if not self._api.find_problem():
                await self.write_changes()

    async def write_changes(self) -> None:
        """Write what has changed since the last call, and wake the pods that are due."""
        policies, now = self._policies, self._clock()
        self._delayed = {name: until for name, until in self._delayed.items() if until > now}
        await self._try_all(self._wake_pods())
        for namespace in policies.changed - self._delayed.keys():
            policies.changed.discard(namespace)
            for write in (self._write_costs, self._write_tolerations, self._write_statuses):
                if not await self._try_all(write(namespace)):
                    policies.changed.add(namespace)
                    self._delayed[namespace] = now + AGAIN

    async def _try_all(self, writes: Iterable[Coroutine[None, None, None]]) -> bool:
        """Return whether all writes succeeded; log one error of each kind.

        A write that fails stops no other one, because others may own its pod.
        """
        errors: dict[type[CgpuError], CgpuError] = {}
        for write in writes:
            error = await _find_error(write)
            if isinstance(error, NotLeadingError):
                return False
            if error:
                errors.setdefault(type(error), error)
        for error in errors.values():
            self._report("policy_not_written", {"error": error})
        return not errors

    async def _change_pod(self, pod: Pod, metadata: Json, **members: Json) -> None:
        """Patch a pod, unless it is gone or another pod has its name."""
        path = PODS.path(pod.name, namespace=pod.namespace)
        body = {"metadata": {"uid": pod.uid, **metadata}, **members}
        try:
            await self._api.patch(path, body)
        except NotFoundError:
            return

    def _wake_pods(self) -> Writes:
        """Make schedulers try the pods again whose wait for a unit is over."""
        now, waits = self._clock(), self._policies.waits
        for uid in [*waits]:
            wait = waits.get(uid)
            if wait is None or wait.again is None or wait.again > now:
                continue
            pod = self._policies.get_pod(wait.pod)
            evicting = pod.nominated and wait.policy.preempt == BEFORE_NEXT
            if not pod.node and uid not in self._policies.promised and not evicting:
                yield self._wake_pod(pod, wait, now)

    async def _wake_pod(self, pod: Pod, wait: UnitWait, now: float) -> None:
        uid, waits = pod.uid, self._policies.waits
        self._policies.report_room()  # so that room for the pod's group is searched for again
        due = waits[uid] = wait._replace(again=now + AGAIN)  # in case the write fails
        await self._change_pod(pod, {"annotations": {RETRY: f"{time.time():.0f}"}})
        if waits.get(uid) is due:
            waits[uid] = due._replace(again=None, units=_end_endings(due.units, now))
        if self._policies.find_policy(pod) is None:
            waits.pop(uid, None)

    def _write_costs(self, namespace: str) -> Writes:
        policies = self._policies
        for known in self._list_known(namespace):
            if known.policy is None:
                continue
            for uid, cost in policies.get_counts(known.policy).list_costs().items():
                pod = policies.pods.get(namespace, {}).get(uid)
                if pod and pod.node and not pod.terminating:
                    notes = write_cost(pod, cost)
                    if not notes.items() <= pod.annotations.items():
                        yield self._change_pod(pod, {"annotations": notes})
            yield asyncio.sleep(0)  # let calls of the scheduler be answered

    def _list_known(self, namespace: str) -> Iterator[KnownPolicy]:
        """Yield each policy in its latest state, because policies change between our writes."""
        for name in [*self._policies.known.get(namespace, {})]:
            known = self._policies.known.get(namespace, {}).get(name)
            if known:
                yield known

    def _write_tolerations(self, namespace: str) -> Writes:
        """Add a toleration of virtual nodes to unschedulable pods whose policies have such nodes.

        kube-scheduler does not ask the extender about a node whose taint a pod does not tolerate.
        """
        policies = self._policies
        pods = [*policies.pods.get(namespace, {}).values()]
        self._tolerant &= {uid for known in policies.pods.values() for uid in known}
        for pod in pods:
            policy = policies.find_policy(pod) if pod.unschedulable and not pod.node else None
            if policy is None or pod.uid in self._tolerant or not policies.is_led(pod):
                continue
            if any(unit.resource != ECS for unit in policy.units):
                yield self._tolerate(pod)
            else:
                self._tolerant.add(pod.uid)

    async def _tolerate(self, pod: Pod) -> None:
        with suppress(NotFoundError):
            item = await self._api.get(PODS.path(pod.name, namespace=pod.namespace))
            if tolerations := _list_tolerations(get_member(item, "spec", dict)):
                version = get_member(get_member(item, "metadata", dict), "resourceVersion", str)
                spec = {"tolerations": tolerations}
                await self._change_pod(pod, {"resourceVersion": version}, spec=spec)
        self._tolerant.add(pod.uid)

    def _write_statuses(self, namespace: str) -> Writes:
        for known in self._list_known(namespace):
            status = make_status(self._policies, known)
            if status != known.status:
                yield self._write_status(known, status)
            yield asyncio.sleep(0)

    async def _write_status(self, known: KnownPolicy, status: Json) -> None:
        path = RESOURCE_POLICIES.path(known.name, namespace=known.namespace, part="status")
        change = make_status_change(known.status, status)
        body = {"metadata": {"uid": known.uid}, **change}
        with suppress(NotFoundError):  # the policy is gone, or its kind has no subresource status
            await self._api.patch(path, body)
        message = status.get("message", "")
        if message and message not in {known.status.get("message"), self._warned.get(known.uid)}:
            when = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
            event = make_event(known, message, when, f"{time.time_ns():x}")
            await self._api.post(EVENTS.path(namespace=known.namespace), event)
        self._warned = {uid: each for uid, each in self._warned.items() if uid != known.uid}
        if message:
            self._warned[known.uid] = message


async def _find_error(write: Coroutine[None, None, None]) -> CgpuError | None:
    """Await a write, and return its error; None if it succeeds."""
    try:
        await write
    except CgpuError as error:
        return error
    return None


def _list_tolerations(spec: Json) -> list[Json]:
    """Return the tolerations that a pod needs for virtual nodes; [] if it is to keep its own."""
    if get_member(spec, "schedulerName", str) not in SCHEDULERS:
        return []  # its own scheduler would bind it there, whatever the units' limits
    have = get_objects(spec, "tolerations")
    if any(each.get("key", "") in {"", VIRTUAL_TAINT} for each in have):
        return []
    return [*have, {"key": VIRTUAL_TAINT, "operator": "Exists"}]


def _end_endings(waits: Mapping[int, float], now: float) -> dict[int, float]:
    """Return the waits of a pod that was woken.

    Its scheduler hears of that after it has heard of the pods that ended before.
    """
    return {unit: now if since == ENDING else since for unit, since in waits.items()}
