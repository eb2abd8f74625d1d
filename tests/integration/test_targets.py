"""What people call policies, GPUs and containers, at the command line and in the configuration."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import server_world
from cgpu_run_world import World
from server_world import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration
PATIENCE = 60  # seconds, for a program to start on a busy machine
SLEEP = ("--", "sleep", "60")


class Served:
    """Two simulated GPUs, and a server of their own that serves already."""

    def __init__(self, config: str = "") -> None:
        self.world = World(gpus=2)
        self.world.state.mkdir(mode=0o700)
        etc = self.world.folder / "etc" / "cgpu"
        etc.mkdir(parents=True)
        (etc / "config.toml").write_text(config)
        self.server = server_world.World(self.world.state)
        flags = ["--driver-dir", str(self.world.driver)]
        view = f'mount --bind {self.world.folder}/etc /etc && exec "$@"'
        command = ["unshare", "-m", "sh", "-c", view, "sh", *self.server.command(*flags)]
        self._process = subprocess.Popen(command, env=self.world.environment())
        wait_until(lambda: self.server.pid() is not None, "it serves", PATIENCE)

    def cgpu(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of ``cgpu``."""
        return self.world.run_command(
            [sys.executable, "-m", "cgpu_cli.main", *words, *self.world.flags()]
        )

    def get(self, *words: str) -> dict[str, Any]:
        """What ``cgpu get --json`` says."""
        done = self.cgpu("get", "--json", *words)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def rules(self) -> list[tuple[int, int]]:
        """Policy and max_inst of each GPU."""
        return [(gpu["policy"], gpu["max_inst"]) for gpu in self.get()["gpus"]]

    def close(self) -> None:
        """End the server."""
        self._process.kill()
        self._process.wait()


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.close()


def test_policies_are_chosen_by_name_and_for_all_gpus_at_once(served: Served) -> None:
    """SCH-9, CLI-2: all change, or none."""
    assert served.cgpu("set", "all", "policy=fixed", "max_inst=8").stderr == ""
    assert served.rules() == [(3, 8)] * 2
    words = ("--mem", "6/15", "--gpus", "1")
    heavy = served.world.start(*words, "--policy", "Fixed", "--weight", "5", *SLEEP)
    wait_until(lambda: served.get()["containers"], "it is admitted", PATIENCE)
    done = served.cgpu("set", "all", "policy=soft", "max_inst=4")
    sentence = "max_inst=4: the containers on GPU 1 have weight 5 together"
    assert (done.returncode, done.stderr) == (2, f"cgpu: {sentence}\n")
    assert served.rules() == [(3, 8)] * 2
    assert served.cgpu("set", "0", "policy=weighted fair").stderr == ""
    assert served.rules() == [(6, 8), (3, 8)]
    (session,) = (container["id"] for container in served.get()["containers"])
    other = served.world.run(*words, "--policy", "weighted-fair", "--", "true")
    said = f"--policy weighted-fair: GPU 1 is under policy 3 while {session} runs"
    assert (other.returncode, said in other.stderr) == (2, True), other.stderr
    heavy.kill()
    heavy.communicate()


def test_a_gpu_has_the_policy_that_the_configuration_gives_it() -> None:
    """SCH-9: until somebody changes it."""
    served = Served('[node]\npolicy = "soft"\n[gpu.0]\npolicy = "fixed"\nmax_inst = 10\n')
    assert served.rules() == [(3, 10), (4, 20)]
    assert served.cgpu("set", "0", "policy=native").stderr == ""
    assert served.rules() == [(5, 10), (4, 20)]
    served.close()
