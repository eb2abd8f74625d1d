"""A publisher of ResourceSlices at work, against a fake API server or the real one."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from cgpu_k8s.apiserver.client import open_client
from cgpu_k8s.apiserver.resources import SLICES
from cgpu_k8s.dra.publisher import SlicePublisher
from cgpu_k8s.dra.slices import GpuProblem, SliceGpu
from lab.cluster.claims import DRIVER, NODE
from lab.containers.enclosure import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from cgpu_k8s.apiserver.client import Client
    from cgpu_k8s.apiserver.cluster import Cluster

ONE, TWO = (SliceGpu(index, f"GPU-{index}", "Tesla T4", 15109) for index in range(2))
LOST = GpuProblem("GPU-is-lost-error-15", "GPU 1 (GPU-1) does not answer: GPU is lost")


class Published:
    """A publisher at work.

    Attributes:
        gpus: what it sees.
        looks: how often it has looked.
        log: what it has reported.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self.gpus: list[SliceGpu] | None = [ONE, TWO]
        self.looks = 0
        self.log: list[tuple[str, dict[str, Any]]] = []

    async def observe(self) -> list[SliceGpu] | None:
        self.looks += 1
        return self.gpus

    def report(self, event: str, fields: dict[str, Any]) -> None:
        self.log.append((event, fields))

    def reported(self, event: str) -> list[Any]:
        """What it has reported of an event: errors, or numbers of devices."""
        return [value for each, fields in self.log if each == event for value in fields.values()]

    async def slice(self) -> Any:
        """The slice of our driver's; None: there is none."""
        found = await self._client.list(SLICES.path())
        return next((each for each in found.items if each["spec"]["driver"] == DRIVER), None)

    async def taints(self) -> dict[str, list[Any]]:
        """The taints of each device, by its name."""
        devices = (await self.slice() or {"spec": {}})["spec"].get("devices") or []
        return {each["name"]: each.get("taints", []) for each in devices}

    async def looked(self, times: int = 3) -> None:
        """Return when it has looked so often."""
        until = self.looks + times
        await _reached(lambda: self.looks > until, "it looks")

    async def until(self, devices: dict[str, list[str]]) -> None:
        """Return when these devices are published, with taints of these values."""
        for _ in range(200):
            found = await self.taints()
            if {name: [each["value"] for each in its] for name, its in found.items()} == devices:
                return
            await self.looked(0)
        raise AssertionError(f"expected {devices}, and there are {found}: {self.log}")

    async def rested(self) -> None:
        """Nothing is written while it looks three times."""
        before = await self.slice()
        await self.looked()
        assert await self.slice() == before


async def _reached(condition: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(wait_until, condition, what)


@contextlib.asynccontextmanager
async def publishing(cluster: Cluster) -> AsyncIterator[Published]:
    """A publisher for the node ``NODE`` of a cluster, until the end of the block."""
    async with open_client(cluster) as client:
        found = Published(client)
        publisher = SlicePublisher(client, NODE, found.observe, found.report)
        task = asyncio.ensure_future(publisher.run())
        try:
            yield found
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
