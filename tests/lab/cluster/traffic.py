"""Pods that come and end all the time, as in a cluster that is used."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Iterator

from cgpu_k8s.apiserver.client import Client, open_client
from lab.cluster import crowd
from lab.cluster.crowd import Outcome
from lab.kubernetes.control_plane import ControlPlane

PERIOD = 0.5  # seconds
COMING = 2  # pods in each
KEPT = 200  # pods; the oldest end
GIB = 3  # of each
_PATIENCE = 120.0


class Traffic:
    """See ``traffic``.

    Attributes:
        count: how many pods have come so far.
    """

    def __init__(self, plane: ControlPlane, name: str) -> None:
        self.count = 0
        self._plane, self._name = plane, name
        self._live: deque[str] = deque()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def start(self) -> None:
        """Let pods come."""
        self._thread.start()

    def end(self) -> None:
        """Let no more pods come or end."""
        self._ended.set()
        self._thread.join(30)

    async def _run(self) -> None:
        async with open_client(self._plane.cluster()) as client:
            while not self._ended.is_set():
                names = [f"{self._name}-{self.count + n:05}" for n in range(COMING)]
                await crowd.add_pods(client, dict.fromkeys(names, GIB))
                self.count += COMING
                self._live.extend(names)
                while len(self._live) > KEPT:
                    await crowd.remove_pod(client, self._live.popleft())
                await asyncio.sleep(PERIOD)

    async def outcome(self) -> Outcome:
        """What became of the pods when each has been tried again, or none of them is left.

        A scheduler tries a pod again whose call failed when another one ends, or after a minute.
        """
        async with open_client(self._plane.cluster()) as client:
            found = await crowd.outcome(client)
            deadline = asyncio.get_running_loop().time() + _PATIENCE
            while found.waiting and asyncio.get_running_loop().time() < deadline:
                await self._end_one(client, found)
                await asyncio.sleep(1)
                found = await crowd.outcome(client)
            return found

    async def _end_one(self, client: Client, found: Outcome) -> None:
        """End a pod that is bound, if there is one."""
        bound = [name for name in self._live if name not in found.waiting]
        for name in bound[:1]:
            self._live.remove(name)
            await crowd.remove_pod(client, name)


@contextlib.contextmanager
def traffic(plane: ControlPlane, name: str) -> Iterator[Traffic]:
    """Pods whose names begin with ``name``, which come and end until the end of the block."""
    made = Traffic(plane, name)
    made.start()
    try:
        yield made
    finally:
        made.end()
