"""What a node's agent says of GPUs that are lost and back, to an API server that refuses it."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_env.errors import CgpuError
from cgpu_k8s.node.agent import Agent, Place
from cgpu_k8s.node.gpu_observer import GpuState
from cgpu_k8s.node.plan import NodePlan, plan_health_events
from cgpu_k8s.objects.gpus import OfferedGpu

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit

BOTH = tuple(OfferedGpu(f"GPU-{index}", index, 16160) for index in range(2))
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
    place = Place("gpu-a", tmp_path / "kubernetes.json", str(tmp_path))
    client: Any = server
    other: Any = None
    return Agent(place, client, other, other, other, lambda *_: None)


def see(agent: Agent, *looks: tuple[OfferedGpu, ...]) -> None:
    """What the node offered before and offers now, look by look."""
    for before, now in pairwise(looks):
        events = plan_health_events(before, now, GpuState(), agent._unsent)  # noqa: SLF001
        asyncio.run(agent._apply_plan({}, NodePlan((), events)))  # noqa: SLF001


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
