"""Programs under ``cgpu-run`` that compute beside each other on a simulated GPU."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from cgpu_sim import gpu_times
from lab.machine.servers import end_servers, serving
from lab.shares.compute import TAG, Shares, measure, measure_on_time, prefer, spin_program, wait_for
from lab.shares.compute_player import Player, wait_until
from lab.shares.gatewatch import STATES
from lab.worlds.cgpu_run import World

if TYPE_CHECKING:
    from pathlib import Path

WARM_UP_SECONDS, SECONDS = 2.0, 10.0
PAUSELESS = "us=100 stream=nonblocking"  # short kernels, one after the other
IN_FORCE_SECONDS, CHANGED_SECONDS = 0.1, 2.0  # SCH-9


class Players:
    """Several of them on one machine, ended with the test."""

    def __init__(self, gpus: int = 1) -> None:
        self.world = World(gpus=gpus)
        self.by_tag: dict[str, Player] = {}

    def start(self, tag: str, flags: str, *program: str | Path, **env: str) -> Player:
        """Start a program with 3 of 15 GiB and these flags."""
        before = set(self.world.sessions())
        words = self.world.command(
            *self.world.flags(), "--mem", "3/15", *flags.split(), "--", *program
        )
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self.world.environment(**{TAG: tag, **env}),
            text=True,
        )
        name = self._session_besides(before, process)
        self.by_tag[tag] = Player(process, self.world.state / "containers" / name)
        return self.by_tag[tag]

    def spin(self, tag: str, flags: str, how: str, **env: str) -> Player:
        """Start ``programs/compute/spin.c``."""
        return self.start(tag, flags, spin_program(), "seconds=0", *how.split(), **env)

    def spin_again_and_again(self, tag: str, flags: str, how: str) -> Player:
        """The same, started anew by a shell whenever it is killed."""
        command = shlex.join([str(spin_program()), "seconds=0", *how.split()])
        loop = f"exec 2>/dev/null; while ! {command}; do :; done"
        return self.start(tag, flags, "sh", "-c", loop)

    def pid(self, tag: str, besides: int | None = None) -> int:
        """The process that is on the GPU with this tag, and not ``besides``, which was killed."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            pids = [p.pid for p in gpu_times(self.world.driver) if p.tag == tag]
            if len(pids) == 1 and pids[0] != besides:
                return pids[0]
            time.sleep(0.005)
        raise AssertionError(f"no single process {tag}")

    def server(self) -> int:
        """The one server; others that were started with it find its lock taken, and end."""
        state = self.world.state
        wait_until(lambda: len(serving(state)) == 1, "one server")
        return serving(state)[0]

    def wait(self) -> None:
        """Until all of them are on the GPU, where they and the server go before other programs."""
        wait_for(self.world.driver, self.by_tag)
        prefer(serving(self.world.state))

    def measure(self, warm_up: float = WARM_UP_SECONDS, seconds: float = SECONDS) -> Shares:
        """The true shares once all are at work and what came before is forgotten."""
        self.wait()
        measure(self.world.driver, (), warm_up)
        server = serving(self.world.state)
        shares = measure_on_time(self.world.driver, self.by_tag, seconds, server)
        now = time.monotonic_ns()
        for tag, player in self.by_tag.items():  # for whoever looks why a share is wrong
            print(tag, player.watched.figures(now), player.watched.works(now))  # noqa: T201
        assert all(player.process.poll() is None for player in self.by_tag.values())
        return shares

    def measure_together(self, seconds: float = 4.0) -> float:
        """The part of the time in which nobody's gate is closed: 0 where they take turns."""
        self.wait()
        time.sleep(WARM_UP_SECONDS)
        pages = [player.watched.limits.gpus[0] for player in self.by_tag.values()]
        looks, deadline = [], time.monotonic() + seconds
        while time.monotonic() < deadline:
            looks.append(all(STATES[page.gate & 3] != "closed" for page in pages))
            time.sleep(0.001)
        return sum(looks) / len(looks)

    def change(self, target: str, value: str) -> Shares:
        """``cgpu set`` of a GPU or a tag, and the true shares from 100 ms to 2 s after it."""
        words = [sys.executable, "-m", "cgpu_cli.main", "set", *self.world.flags()]
        player = self.by_tag.get(target)
        done = self.world.run_command([*words, player.folder.name if player else target, value])
        assert done.returncode == 0, done.stderr
        time.sleep(IN_FORCE_SECONDS)
        shares = measure(self.world.driver, self.by_tag, CHANGED_SECONDS - IN_FORCE_SECONDS)
        print(shares)  # noqa: T201
        return shares

    def end(self, tag: str) -> None:
        """End a program by SIGKILL; what it started ends with its standard input."""
        process = self.by_tag.pop(tag).process
        process.kill()
        process.communicate()

    def stop(self) -> None:
        """End them all, and the server that they started."""
        for tag in list(self.by_tag):
            self.end(tag)
        end_servers(self.world.folder)

    def _session_besides(self, before: set[str], process: subprocess.Popen[str]) -> str:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            new = [n for n in set(self.world.sessions()) - before if not n.startswith(".")]
            if new:
                return new[0]
            assert process.poll() is None, "cgpu-run ended"
            time.sleep(0.005)
        raise AssertionError("no session")


def shares_return(pair: Players) -> bool:
    """Whether two of the same weight have the same again."""
    parts = pair.measure(warm_up=1, seconds=4).parts()
    return all(abs(part - 50) <= 3 for part in parts.values())
