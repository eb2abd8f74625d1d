"""What a node's agent says of GPUs that are lost and back, to an API server that refuses it."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_env.errors import CgpuError
from cgpu_k8s.node.agent import Agent, Place
from cgpu_k8s.objects.gpus import Fact

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit

BOTH = tuple(Fact(f"GPU-{index}", index, 16160) for index in range(2))
GONE = tuple(gpu._replace(healthy=False) for gpu in BOTH)
FIRST_GONE = (GONE[0], BOTH[1])


class Server:
    """An API server that refuses events at will, and has the others."""

    def __init__(self) -> None:
        self.refuses = True
        self.events: list[tuple[str, str]] = []

    async def post(self, path: str, event: dict[str, Any]) -> None:
        if self.refuses:
            raise CgpuError(f"POST {path}: 403 Forbidden")
        self.events.append((event["reason"], event["message"].split(")")[0]))


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def agent(server: Server, tmp_path: Path) -> Agent:
    shares: Any = SimpleNamespace(state=str(tmp_path))
    place = Place("gpu-a", tmp_path / "kubernetes.json", shares)
    client: Any = server
    other: Any = None
    return Agent(place, client, other, other, other, None, lambda *_: None, lambda _: "")


def see(agent: Agent, *looks: tuple[Fact, ...]) -> None:
    """What the node offered before and offers now, look by look."""
    for before, now in pairwise(looks):
        asyncio.run(agent._send_health_events(before, now))  # noqa: SLF001


def test_an_event_that_is_refused_is_sent_again(agent: Agent, server: Server) -> None:
    """K8S-12: once for each GPU, whether lost or back, as soon as the API server takes it."""
    see(agent, BOTH, GONE, GONE)
    assert server.events == []
    server.refuses = False
    see(agent, GONE, GONE, GONE)
    lost = [("GpuLost", "GPU 0 (GPU-0"), ("GpuLost", "GPU 1 (GPU-1")]
    assert server.events == lost
    server.refuses = True
    see(agent, GONE, FIRST_GONE)
    server.refuses = False
    see(agent, FIRST_GONE, FIRST_GONE, FIRST_GONE)
    assert server.events == [*lost, ("GpuBack", "GPU 1 (GPU-1")]


def test_an_event_that_is_no_longer_true_is_not_sent(agent: Agent, server: Server) -> None:
    """K8S-12: a GPU was lost and is back before the API server takes events."""
    see(agent, BOTH, GONE, FIRST_GONE)
    server.refuses = False
    see(agent, FIRST_GONE, FIRST_GONE)
    assert server.events == [("GpuLost", "GPU 0 (GPU-0")]
