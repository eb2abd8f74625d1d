"""A machine for the tests of ``cgpu-run``: simulated GPUs, a state directory, and users."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

from cgpu_sim import make_driver_dir
from cgpu_sim.machine import TESLA_T4
from lab.machine import folders
from lab.machine.nobody import NOBODY, become_nobody
from lab.runs.children import Child
from lab.worlds import server as server_world

PROGRAMS = Path(__file__).resolve().parents[2] / "programs"
FILL = PROGRAMS / "fill_memory.py"
MIB = 1 << 20
CAP_SIX, CAP_NINE = 6043, 9065


class World:
    """Simulated GPUs in ``driver`` and a state directory, for root or for an ordinary user."""

    def __init__(self, *, root: bool = True, gpus: int = 1, node_state: Path | None = None) -> None:
        self._node_state = node_state  # what this world's programs find as root's
        self.folder = folder = folders.make("cgpu-run-")
        self._removal = weakref.finalize(self, folders.remove, folder)
        self.root = root
        self.driver = folder / "driver"
        self.state = folder / "runtime" / "cgpu"
        make_driver_dir(self.driver, [TESLA_T4] * gpus)
        self.state.parent.mkdir(mode=0o755 if root else 0o700)
        if not root:
            os.chown(self.state.parent, NOBODY, NOBODY)

    def cgpu_run(self, *arguments: str | Path) -> list[str]:
        """The command line that starts ``cgpu-run`` on this machine."""
        words = [sys.executable, "-m", "cgpu_cli.run", "--driver-dir", self.driver]
        return [str(word) for word in (*words, *arguments)]

    def command(self, *arguments: str | Path) -> list[str]:
        """The same, as the user of this machine."""
        return self.as_user(self.cgpu_run(*arguments))

    def as_user(self, command: list[str]) -> list[str]:
        """``command`` as the user of this world."""
        return (
            command
            if self.root
            else ["unshare", "-m", "sh", "-c", become_nobody(command, self._node_state)]
        )

    def environment(self, **more: str) -> dict[str, str]:
        """What the test's own environment has, and this machine's state directory."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        return {**environment, "XDG_RUNTIME_DIR": str(self.state.parent), **more}

    def flags(self) -> list[str]:
        """Root's state directory would be the real one."""
        return ["--state-dir", str(self.state)] if self.root else []

    def run(self, *arguments: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run ``cgpu-run`` to its end."""
        return self.run_command(self.command(*self.flags(), *arguments), **more)

    def run_command(self, command: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
        """Run any command with this machine's environment."""
        more.setdefault("env", self.environment())
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=60, **more
        )

    def start(self, *arguments: str | Path) -> Child:
        """Start ``cgpu-run`` with pipes."""
        return Child(self.command(*self.flags(), *arguments), self.environment())

    def fill(
        self,
        *before: str | Path,
        how: str = "path",
        flags: tuple[str, ...] = ("--mem", "6/15"),
        **more: Any,
    ) -> dict[str, Any]:
        """What a program gets that takes all it can; ``before`` are words before its own."""
        words = [*before, sys.executable, "-I", FILL, self.driver, how]
        done = self.run(*flags, "--", *words, **more)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def smi(self) -> dict[str, Any]:
        """What cgpu-smi says."""
        words = [sys.executable, "-m", "cgpu_cli.smi", "--json", "--driver-dir", str(self.driver)]
        done = self.run_command(self.as_user([*words, *self.flags()]))
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def sessions(self) -> list[str]:
        """What is in the state directory of sessions, half-made ones included."""
        folder = self.state / "containers"
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []

    def wait_until_empty(self) -> None:
        """The keeper removes a session soon after its end."""
        deadline = time.monotonic() + 20
        while self.sessions() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert self.sessions() == []


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
