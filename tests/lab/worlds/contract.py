"""A client of an API server, fake or real, in a namespace of its own."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

import pytest

from cgpu_k8s.apiserver.client import Client, open_client
from cgpu_k8s.apiserver.errors import ApiError
from cgpu_k8s.apiserver.resources import NAMESPACES, PODS
from cgpu_k8s.apiserver.watch import Changed, Watch
from lab.kubernetes.control_plane import ControlPlane
from lab.kubernetes.fake_server import FakeServer

T = TypeVar("T")
Json = dict[str, Any]
Server = FakeServer | ControlPlane
_NUMBERS = itertools.count()
PATIENCE = 30.0  # seconds


class World:
    """A client, and a namespace that nobody else uses."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client, self.namespace = client, namespace
        self.pods = PODS.path(namespace=namespace)

    def pod(self, name: str, part: str = "") -> str:
        return PODS.path(name, namespace=self.namespace, part=part)

    def watch(self, **selectors: str) -> Watch[Json]:
        return Watch(self.client, self.pods, dict, selectors=selectors)


def tried(server: Server, act: Callable[[World], Awaitable[T]]) -> T:
    """What ``act`` returns, with a client of the server."""

    async def run() -> T:
        namespace = f"contract-{next(_NUMBERS)}"
        async with open_client(server.cluster()) as client:
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
            await client.post(NAMESPACES.path(), body)
            return await asyncio.wait_for(act(World(client, namespace)), PATIENCE)

    return asyncio.run(run())


async def refused(act: Awaitable[object]) -> ApiError:
    with pytest.raises(ApiError) as error:
        await act
    assert "\n" not in str(error.value)
    return error.value


async def names(world: World, path: str, **query: str) -> list[str]:
    found = await world.client.list(path, query)
    return [each["metadata"]["name"] for each in found.items]


async def news(events: AsyncGenerator[Any, None], count: int) -> list[tuple[str, str]]:
    """The next changes of a watch, as kind and name."""
    found = []
    async for each in events:
        assert isinstance(each, Changed)
        found.append((each.kind, each.item["metadata"]["name"]))
        if len(found) == count:
            break
    return found
