"""Writes the pods' requests on the node; they limit allocations at a container's start."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from cgpu_node import podspecs
from cgpu_node.podspecs import PodSpec

if TYPE_CHECKING:
    from collections.abc import Collection

    from cgpu_k8s.node.pods import NodePod

_WELL = 15.0  # seconds without a failure: longer than a watch pauses after one
_AGAIN = 0.01


class Specs:
    """The specifications in the state directory ``state``, and whether they are complete.

    Errors of the file system are the caller's.
    """

    def __init__(self, state: str) -> None:
        self._state = state
        self._current = podspecs.Current(state)
        self._left: dict[str, PodSpec] = {}
        self._listed, self._failed = False, float("-inf")

    async def replace_all(self, pods: Collection[NodePod]) -> None:
        """Keep the specifications of these pods only, which are all pods of the node."""
        for uid in set(podspecs.list_uids(self._state)) - {pod.uid for pod in pods}:
            self.remove(uid)
        for pod in pods:
            self.update(pod)
        self._listed, self._failed = True, float("-inf")
        await self.mark_current()

    def update(self, pod: NodePod) -> None:
        """Write the specification of a pod that is new or has changed."""
        if not pod.shares:
            self.remove(pod.uid)
            return
        spec = PodSpec(pod.name, pod.limits)
        if self._left.get(pod.uid) != spec:
            podspecs.write_spec(self._state, pod.uid, spec)
            self._left[pod.uid] = spec

    def remove(self, uid: str) -> None:
        """Remove the specification of a pod that is gone, or has ended for good."""
        self._left.pop(uid, None)
        podspecs.remove_spec(self._state, uid)

    def mark_stale(self) -> None:
        """Release the lock: the specifications may be older than the API server's."""
        self._failed = time.monotonic()
        self._current.end()

    async def mark_current(self) -> None:
        """Take the lock, which shows that all is written, if nothing has failed lately."""
        while self._listed and time.monotonic() - self._failed > _WELL:
            if self._current.begin():
                return
            await asyncio.sleep(_AGAIN)  # somebody checks the lock just now
