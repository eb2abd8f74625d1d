"""A node with root's server, and a user beside root."""

from __future__ import annotations

from typing import Any

from lab.worlds import server as server_world
from lab.worlds.cgpu_run import World


class Node:
    """Root's server, and a user's programs on the same simulated GPUs."""

    def __init__(self, *, service: bool = False, gpus: int = 1) -> None:
        self.root = World(gpus=gpus)
        self.root.state.mkdir(mode=0o700)
        self.server = server_world.World(self.root.state)
        self.user = World(root=False, node_state=self.root.state)
        self.user.driver = self.root.driver
        driver = ("--driver-dir", str(self.root.driver))
        self.process = self.server.start(*driver, service=service)

    def status(self) -> dict[str, Any]:
        """What the server answers to root."""
        return self.server.ask({"request": "status"})

    def end(self) -> None:
        """End the server."""
        self.process.kill()
        self.process.wait()
