"""Writes what is reserved for groups into the pods, before the first pod of a group is bound.

So the pods' schedulers ask again, and a leader that comes after this one reserves the same.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from cgpu_k8s.apiserver.errors import NotFoundError
from cgpu_k8s.apiserver.resources import PODS
from cgpu_k8s.names import RESERVATION
from cgpu_k8s.objects.groups import Reservation, write_reservation

if TYPE_CHECKING:
    from cgpu_k8s.scheduler.cache import SchedulerCache
    from cgpu_k8s.scheduler.leader_client import LeaderClient

_AT_ONCE = 16  # patches on their way


class ReservationWriter:
    """Writes reservations of groups.

    Args:
        cache: the cluster's.
        api: of the API server.
    """

    def __init__(self, cache: SchedulerCache, api: LeaderClient) -> None:
        self._cache, self._api = cache, api
        self._lock = asyncio.Lock()

    async def write_all(self) -> None:
        """Return when all that was reserved before the call is written, or it may not be.

        Raises:
            CgpuError: something is not, and the next call tries again.
        """
        async with self._lock:
            while not self._api.find_problem() and self._cache.groups.unwritten:
                ahead = sorted(self._cache.groups.unwritten)[:_AT_ONCE]
                await asyncio.gather(*map(self._write, ahead))

    async def _write(self, uid: str) -> None:
        assumed, unwritten = self._cache.assumed.get(uid), self._cache.groups.unwritten
        if assumed is None or uid not in unwritten:  # it was released a moment ago
            unwritten.discard(uid)
            return
        pod, allocation = assumed.pod, assumed.allocation
        now, age = time.time(), time.monotonic() - self._cache.groups.get_since(uid)
        found = Reservation(allocation.node, allocation.gpus, int(now - age), int(now))
        text = write_reservation(found)
        about = {"uid": uid, "annotations": {RESERVATION: text}}  # of no later pod of this name
        path = PODS.path(pod.name, namespace=pod.namespace)
        try:
            await self._api.patch(path, {"metadata": about})
        except NotFoundError:
            self._cache.remove_pod(uid)
        if self._cache.assumed.get(uid) == assumed:
            self._cache.groups.unwritten.discard(uid)
