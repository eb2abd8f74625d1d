"""A state directory with containers that exist in the registry only, and servers for it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cgpu_native
from cgpu_env import GpuShare, Request
from cgpu_node import client
from cgpu_node.facts.node import Node, NodeGpu
from cgpu_node.shares.liveness import start_time
from cgpu_node.shares.registry import Owner, Registry
from lab.machine.as_service import as_service

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20
UUIDS = [f"GPU-0000000{i}-1111-2222-3333-444444444444" for i in range(2)]
NODE = Node(
    "1",
    "/nowhere",
    {},
    {},
    tuple(NodeGpu(i, uuid, "Tesla T4", 15109 * MIB, 0, ()) for i, uuid in enumerate(UUIDS)),
    (),
)


class World:
    """The state directory ``state``; whoever uses it ends its servers (``servers.end_servers``)."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.registry = Registry(str(state))

    def command(self, *flags: str) -> list[str]:
        """``cgpud``."""
        return [sys.executable, "-m", "cgpu_server.main", "--state-dir", str(self.state), *flags]

    def start(self, *flags: str, service: bool = False) -> subprocess.Popen[str]:
        """A server in the foreground that serves already; ``service``: as systemd confines it."""
        command = self.command(*flags)
        server = subprocess.Popen(
            as_service(command) if service else command,
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_until(lambda: server.poll() is not None or self.pid() == server.pid, "it serves")
        return server

    def pid(self) -> int | None:
        """The process id of the server that answers; None if there is none."""
        try:
            pid: int = self.ask({"request": "status"})["pid"]
        except client.CgpuError:
            return None
        return pid

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """What the server answers."""
        return client.send_request(str(self.state), request)

    def admit(self, name: str, *, weight: int = 1, owner: int | None = None, gpus: int = 1) -> Path:
        """A container of this process, or of process ``owner``, on the first GPUs."""
        pid = owner or os.getpid()
        shares = tuple(GpuShare(i, uuid, MIB) for i, uuid in enumerate(UUIDS[:gpus]))
        request = Request(shares, weight, high_priority=False)
        keeper = Owner(pid, start_time(pid) or 0, None)
        return Path(self.registry.admit(name, "container", request, NODE, keeper, ["true"]))

    def containers(self) -> list[str]:
        """The directories of containers."""
        return sorted(path.name for path in (self.state / "containers").iterdir())


def environment() -> dict[str, str]:
    """This process's, with its import path."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def page(directory: Path) -> cgpu_native.LimitsGpu:
    """What the container's limits page says of its first GPU."""
    return cgpu_native.read_limits(directory / "limits").gpus[0]


def is_arbitrated(directory: Path) -> bool:
    """Whether an arbiter has given the container a sign just now."""
    return time.monotonic_ns() - page(directory).heartbeat_ns < 1_000_000_000


def wait_until(condition: Callable[[], object], what: str, seconds: float = 20) -> None:
    """Return when ``condition`` holds; fail after ``seconds`` saying ``what`` did not come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"after {seconds:g} s still not: {what}"
        time.sleep(0.02)
