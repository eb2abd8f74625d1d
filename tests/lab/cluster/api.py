"""A client beside an API server that fails as a test wants it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from cgpu_k8s.apiserver.client import Client, open_client
from lab.kubernetes.fake_server import FakeServer
from lab.kubernetes.objects import pod, pods_path

T = TypeVar("T")
Json = dict[str, Any]
PODS = pods_path()
PATIENCE = 30.0


def tried(fake: FakeServer, act: Callable[[Client], Awaitable[T]], timeout: float = 10.0) -> T:
    async def run() -> T:
        async with open_client(fake.cluster(), timeout=timeout) as client:
            return await asyncio.wait_for(act(client), PATIENCE)

    return asyncio.run(run())


def create(client: Client) -> Awaitable[Json]:
    return client.post(PODS, pod("a"))


async def done(act: Callable[[], object]) -> None:
    """Do something to the fake, which answers from another thread."""
    await asyncio.to_thread(act)
