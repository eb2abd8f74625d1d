"""Writes the reservations of groups, and lets the bindings of a group wait for each other.

Reservations are written to the pods before the first pod of a group is bound. The write makes the
pods' schedulers ask again, and lets the next leader restore the reservations. Then each binding
waits for those of the other pods that its group needs.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from cgpu_env.errors import CgpuError
from cgpu_k8s.apiserver.errors import ForbiddenError, InvalidError, NotFoundError
from cgpu_k8s.apiserver.resources import PODS
from cgpu_k8s.names import RESERVATION
from cgpu_k8s.objects.groups import Reservation, write_reservation

if TYPE_CHECKING:
    from cgpu_k8s.objects.groups import GroupName
    from cgpu_k8s.scheduler.cache import SchedulerCache
    from cgpu_k8s.scheduler.leader_lease import LeaderClient

_AT_ONCE = 16  # concurrent patches
# Seconds from the beginning of a call for which a binding waits. A pod that its scheduler has just
# refused is back after up to 10 s, the longest back-off. The chart's httpTimeout is 30 s.
WAIT = 20.0
LOOK = 0.5  # seconds between two looks at whether our scheduler still leads


async def await_group(cache: SchedulerCache, api: LeaderClient, uid: str, began: float) -> str:
    """Wait until the bindings of all pods that a pod's group needs have come.

    If they do not come in time, the group's reservations are released.

    Args:
        cache: the scheduler's cache.
        api: a client of the API server.
        uid: the UID of a pod with a reservation.
        began: when the call began, in monotonic seconds.

    Returns:
        Why the pod must not be bound; "" if it may.
    """
    rendezvous = cache.groups.arrive(uid)
    # A pod that another scheduler has bound is not among those that came any more.
    while rendezvous.answer is None and uid in rendezvous.came:
        left = began + WAIT - time.monotonic()
        if problem := api.find_problem():
            rendezvous.end(problem)
        elif left <= 0:
            cache.groups.give_up(uid)
        else:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(rendezvous.over.wait(), min(left, LOOK))
    return rendezvous.answer or ""


class ReservationWriter:
    """Writes reservations of groups.

    Args:
        cache: the scheduler's cache.
        api: a client of the API server.
    """

    def __init__(self, cache: SchedulerCache, api: LeaderClient) -> None:
        self._cache, self._api = cache, api
        self._lock = asyncio.Lock()

    async def write_group(self, group: GroupName) -> str:
        """Write what is reserved for a group; return why some of it is not, "" if all of it is."""
        if not self._list_unwritten(group):
            return ""
        failed = await self.write_all()
        left = self._list_unwritten(group)
        errors = [str(failed[uid]) for uid in left if uid in failed]
        return (errors[0] if errors else self._api.find_problem()) if left else ""

    def _list_unwritten(self, group: GroupName) -> list[str]:
        pods, unwritten = self._cache.pods, self._cache.groups.unwritten
        named = ((uid, pods[uid].group) for uid in sorted(unwritten) if uid in pods)
        return [uid for uid, name in named if name and name[:2] == group[:2]]

    async def write_all(self) -> dict[str, CgpuError]:
        """Try to write all reservations that are not written, for as long as our scheduler leads.

        A failed write stops no other one, and the next call tries it again. A write that the API
        server would refuse again is not repeated: the pod's group loses what was reserved for it.

        Returns:
            The errors, by UID of the pod.
        """
        failed: dict[str, CgpuError] = {}
        async with self._lock:
            while left := self._cache.groups.unwritten - failed.keys():
                if self._api.find_problem():
                    break
                await asyncio.gather(
                    *(self._try_write(uid, failed) for uid in sorted(left)[:_AT_ONCE])
                )
        return failed

    async def _try_write(self, uid: str, failed: dict[str, CgpuError]) -> None:
        try:
            await self._write(uid)
        except CgpuError as error:
            failed[uid] = error
            if isinstance(error, (InvalidError, ForbiddenError)):
                why = f"{RESERVATION} cannot be written: {error}"
                self._cache.groups.bar_pod(uid, why, time.monotonic())

    async def _write(self, uid: str) -> None:
        assumed, unwritten = self._cache.assumed.get(uid), self._cache.groups.unwritten
        if assumed is None or uid not in unwritten:  # it was released meanwhile
            unwritten.discard(uid)
            return
        pod, allocation = assumed.pod, assumed.allocation
        now, age = time.time(), time.monotonic() - self._cache.groups.get_since(uid)
        found = Reservation(allocation.node, allocation.gpus, int(now - age), int(now))
        text = write_reservation(found)
        # Because of the UID, the API server refuses the patch for a later pod of this name.
        about = {"uid": uid, "annotations": {RESERVATION: text}}
        path = PODS.path(pod.name, namespace=pod.namespace)
        try:
            await self._api.patch(path, {"metadata": about})
        except NotFoundError:
            self._cache.remove_pod(uid)
        if self._cache.assumed.get(uid) == assumed:
            self._cache.groups.unwritten.discard(uid)
