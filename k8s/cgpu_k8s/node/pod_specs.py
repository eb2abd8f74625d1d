"""Writes the pods' specifications on the node; the runtime holds decisions to them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from cgpu_node import podspecs
from cgpu_node.podspecs import PodSpec

if TYPE_CHECKING:
    from collections.abc import Collection

    from cgpu_k8s.node.pods import NodePod

_WELL = 15.0  # seconds without a failure; longer than the longest pause of a watch
_AGAIN = 0.01  # seconds until the lock is tried again


class Specs:
    """The specifications in the state directory ``state``, and the lock that marks them complete.

    Methods raise the OSErrors of the file system.
    """

    def __init__(self, state: str) -> None:
        self._state = state
        self._current = podspecs.Current(state)
        self._left: dict[str, PodSpec] = {}
        self._listed, self._failed = False, float("-inf")

    async def replace_all(self, pods: Collection[NodePod]) -> None:
        """Write the specifications of all pods of the node, and remove all others."""
        for uid in set(podspecs.list_uids(self._state)) - {pod.uid for pod in pods}:
            self.remove(uid)
        for pod in pods:
            self.update(pod)
        self._listed, self._failed = True, float("-inf")
        await self.mark_current()

    def update(self, pod: NodePod) -> None:
        """Write the specification of a new or changed pod; remove that of a pod without a share."""
        if not pod.shares:
            self.remove(pod.uid)
            return
        spec = PodSpec(pod.name, pod.limits)
        if self._left.get(pod.uid) != spec:
            podspecs.write_spec(self._state, pod.uid, spec)
            self._left[pod.uid] = spec

    def remove(self, uid: str) -> None:
        """Remove the specification of a pod that is gone or has ended."""
        self._left.pop(uid, None)
        podspecs.remove_spec(self._state, uid)

    def mark_stale(self) -> None:
        """Release the lock: the specifications may be older than the API server's."""
        self._failed = time.monotonic()
        self._current.end()

    async def mark_current(self) -> None:
        """Take the lock if all is written and nothing has failed for 15 s."""
        while self._listed and time.monotonic() - self._failed > _WELL:
            if self._current.begin():
                return
            await asyncio.sleep(_AGAIN)  # another process is just checking the lock
