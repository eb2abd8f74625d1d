"""Containers of docker and the server that their creation starts (ENV-6, ENV-7, SCH-9, 10)."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

import cgpu_native
from cgpu_node import client
from lab.containers.enclosure import wait_until
from lab.machine.node import T4, Node, share
from lab.machine.servers import serving

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lab.containers.enclosure import Enclosure
    from lab.containers.engines import Bundle, Docker

pytestmark = pytest.mark.system
CGPU = ["--runtime=cgpu"]
WEIGHT, HIGH_PRIO = "ALIYUN_COM_GPU_SCHD_WEIGHT", "ALIYUN_COM_GPU_HIGH_PRIO"


def page(node: Node, name: str) -> cgpu_native.LimitsGpu:
    return cgpu_native.read_limits(node.state / "containers" / name / "limits").gpus[0]


def is_arbitrated(node: Node, name: str) -> bool:
    return time.monotonic_ns() - page(node, name).heartbeat_ns < 1_000_000_000


def status(node: Node) -> dict[str, Any]:
    return client.send_request(str(node.state), {"request": "status"})


def test_a_containers_creation_starts_the_server(
    docker: Docker, node: Node, started: Callable[..., str]
) -> None:
    """REL-2: one for all containers of the node, and nothing needs an extra command."""
    first = started("small", "sleep", "1000", options=CGPU, env=share(6))
    wait_until(lambda: is_arbitrated(node, first), "the container is arbitrated")
    assert page(node, first).gate & 3, "its gate is open"
    servers = serving(node.state)
    second = started("small", "sleep", "1000", options=CGPU, env=share(6))
    wait_until(lambda: is_arbitrated(node, second), "so is the next")
    assert serving(node.state) == servers
    assert len(servers) == 1
    docker.docker("rm", "--force", first)
    wait_until(lambda: [c["id"] for c in status(node)["containers"]] == [second], "it is let go")


def test_a_server_killed_with_9_is_started_again_by_the_next_container(
    node: Node, started: Callable[..., str]
) -> None:
    """REL-2."""
    first = started("small", "sleep", "1000", options=CGPU, env=share(6))
    wait_until(lambda: is_arbitrated(node, first), "the container is arbitrated")
    (pid,) = serving(node.state)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_arbitrated(node, first), "the heartbeat has stopped")
    second = started("small", "sleep", "1000", options=CGPU, env=share(6))
    for name in (first, second):
        wait_until(lambda n=name: is_arbitrated(node, n), "it is arbitrated again")  # type: ignore[misc]


def test_weight_and_priority_of_the_environment_reach_the_arbiter(
    docker: Docker, node: Node, started: Callable[..., str]
) -> None:
    """ENV-6, ENV-7, SCH-9, SCH-10."""
    env = {**share(2), WEIGHT: "4", HIGH_PRIO: "1"}
    name = started("small", "sleep", "1000", options=CGPU, env=env)
    wait_until(lambda: is_arbitrated(node, name), "the container is arbitrated")
    (shown,) = status(node)["containers"]
    assert (shown["id"], shown["weight"], shown["high_priority"]) == (name, 4, True)
    command = [sys.executable, "-m", "cgpu_cli.main", "set", "--state-dir", str(node.state)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    docker.enclosure.run(*command, name[:12], "weight=20", "highprio=0", env=environment)
    (shown,) = status(node)["containers"]
    assert (shown["weight"], shown["high_priority"]) == (20, False)
    refused = docker.run("small", "true", options=CGPU, env=share(2), check=False)
    assert "no weight is left on GPU 0: its containers have 20 of max_inst=20" in refused.stderr


def test_under_policy_5_a_container_starts_with_an_open_gate(
    docker: Docker, node: Node, started: Callable[..., str]
) -> None:
    """SCH-5: set for the GPU before anybody is there."""
    name = started("small", "sleep", "1000", options=CGPU, env=share(2))
    wait_until(lambda: is_arbitrated(node, name), "the container is arbitrated")
    for policy in (5, 6):
        values = {"policy": policy}
        client.send_request(str(node.state), {"request": "set", "target": "0", "values": values})
        wait_until(lambda: page(node, name).gate & 3 == 3, "the gate is free")
        other = started("small", "sleep", "1000", options=CGPU, env=share(2))
        limits = cgpu_native.read_limits(node.state / "containers" / other / "limits")
        assert limits.policy == policy
        docker.docker("rm", "--force", other)


def test_a_runtime_without_an_engine_starts_the_server_too(
    bundle: Callable[[Path], Bundle], small_root: Path, enclosure: Enclosure
) -> None:
    """REL-2: the server outlives the runtime that started it, and holds up nothing."""
    fresh = Node(enclosure.base / "served", T4)
    made = bundle(small_root)
    assert made.run(fresh.command(), "true", env=share(6)).stdout == ""
    wait_until(lambda: serving(fresh.state), "the server is there")
    assert fresh.containers() == []
