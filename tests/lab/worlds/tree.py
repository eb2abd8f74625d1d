"""A server that shows a control tree."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from lab.machine.servers import end_servers
from lab.runs.packages import ensure_packages
from lab.worlds import server as server_world
from lab.worlds.server import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

ID = "0123456789abcdef" * 4


class World(server_world.World):
    """One whose servers show a tree."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "state")
        self.state.mkdir(mode=0o700, exist_ok=True)
        self.tree = folder / "km"

    def serve(self, *flags: str) -> subprocess.Popen[str]:
        """A server whose tree is there."""
        server = self.start("--tree", str(self.tree), *flags)
        wait_until(self.is_there, "the tree is mounted")
        return server

    def is_there(self) -> bool:
        return os.path.ismount(self.tree) and bool(self.read("version"))

    def is_served_by(self, pid: int) -> bool:
        try:
            return self.pid() == pid and self.is_there()
        except OSError:
            return False

    def read(self, path: str) -> str:
        return (self.tree / path).read_text()

    def write(self, path: str, text: str) -> str:
        """As ``echo`` does; what it complains of (dash calls each error one of I/O)."""
        words = ["bash", "-c", 'echo "$1" >"$2"', "sh", text, str(self.tree / path)]
        return subprocess.run(words, capture_output=True, text=True, check=False).stderr


def worlds(folder: Path) -> Iterator[World]:
    """One in ``folder``, for a fixture."""
    ensure_packages()
    yield World(folder)
    end_servers(folder)
    assert not os.path.ismount(folder / "km"), "a server that ends takes its tree away"


def output(server: subprocess.Popen[str]) -> str:
    """What the server wrote, once it is asked to end."""
    server.terminate()
    return server.communicate(timeout=20)[1]
