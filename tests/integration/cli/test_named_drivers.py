"""Commands that name a driver other than the server's: it is refused, and nothing is changed."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from lab.machine.servers import end_servers
from lab.worlds.cgpu_run import Node, World
from lab.worlds.server import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab.runs.children import Child

pytestmark = pytest.mark.integration
COMMANDS = (
    ["get"],
    ["get", "0/policy"],
    ["set", "0", "policy=2"],
    ["ls"],
    ["top", "--svg", "/dev/null"],
)


class Served(World):
    """A session on the driver of this world, with the server that it started."""

    def __init__(self) -> None:
        super().__init__()
        self.running: Child = self.start("--mem", "6/15", "--", "sleep", "60")
        wait_until((self.state / "cgpud.sock").exists, "its server listens", 60)

    def cgpu(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of ``cgpu``."""
        command = [sys.executable, "-m", "cgpu_cli.main", *words, *self.flags()]
        return self.run_command(command)


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.running.kill()
    made.running.communicate()


@pytest.mark.parametrize("words", [*COMMANDS, ["probe"], ["demo"]])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_command_that_names_another_driver_is_refused_with_both(
    served: Served, words: list[str], *, is_there: bool
) -> None:
    """CLI-8: the server would answer for its own, and change it; its driver would be forgotten."""
    facts = (served.state / "node.json").read_bytes()
    beside = World()
    other = beside.driver if is_there else served.folder / "nowhere"
    assert other.exists() == is_there
    done = served.cgpu(*words, "--driver-dir", str(other))
    assert (done.returncode, done.stdout) == (2, "")
    absent = "" if is_there else f"; there is no directory {other}"
    assert done.stderr == (
        f"cgpu: the server of {served.state} shares the GPUs of {served.driver}, not of {other}"
        f"{absent}\n"
        "  leave --driver-dir and CGPU_DRIVER_DIR out,"
        " or name another --state-dir for the GPUs there\n"
    )
    assert served.cgpu("get", "0/policy").stdout == "6\n"
    assert (served.state / "node.json").read_bytes() == facts


def test_the_servers_own_driver_may_be_named_in_any_way(served: Served) -> None:
    """CLI-8: through a link, and where it does not answer just now."""
    link = served.folder / "link"
    link.symlink_to(served.driver)
    assert served.cgpu("set", "0", "policy=2", "--driver-dir", f"{link}/").stderr == ""
    hidden = served.folder / "hidden"
    served.driver.rename(hidden)
    assert served.cgpu("get", "--driver-dir", str(served.driver)).returncode == 0
    assert served.cgpu("set", "0", "policy=3", "--driver-dir", str(served.driver)).stderr == ""


@pytest.mark.parametrize("program", ["run", "smi"])
def test_the_other_programs_refuse_it_too(served: Served, program: str) -> None:
    """CLI-8: with a state directory of its own the other driver has its sessions."""
    other = World()
    command = [sys.executable, "-m", f"cgpu_cli.{program}", "--driver-dir", str(other.driver)]
    words = ["--mem", "6/15", "--", "true"] if program == "run" else []
    facts = (served.state / "node.json").read_bytes()
    done = served.run_command([*command, *served.flags(), *words])
    assert (done.returncode, done.stdout) == (2, "")
    sentence = f": the server of {served.state} shares the GPUs of {served.driver}, not of "
    assert f"{sentence}{other.driver}\n" in done.stderr
    assert (served.state / "node.json").read_bytes() == facts
    done = served.run_command([*command, *other.flags(), *words])
    assert (done.returncode, done.stderr) == (0, "")


def test_a_server_that_is_gone_keeps_no_other_driver_out(served: Served) -> None:
    """CLI-8: nobody uses the first one's GPUs then."""
    served.running.kill()
    served.running.communicate()
    end_servers(served.state)
    other = World()
    done = served.run_command([*other.cgpu_run("--mem", "6/15", *served.flags()), "--", "true"])
    assert (done.returncode, done.stderr) == (0, "")


def test_a_server_is_not_started_for_a_driver_that_is_not_there() -> None:
    """CLI-8: whoever comes next would get its answers."""
    world = World()
    words = [sys.executable, "-m", "cgpu_cli.main", "get", *world.flags()]
    done = world.run_command([*words, "--driver-dir", "/nowhere"])
    assert done.returncode == 2
    assert done.stderr.startswith("cgpu: driver directory /nowhere: there is no such directory\n")
    assert not (world.state / "cgpud.sock").exists()


@pytest.mark.parametrize("words", COMMANDS)
def test_a_user_of_roots_server_is_told_the_same(words: list[str]) -> None:
    """CLI-8, CLI-2."""
    node = Node()
    try:
        other = World()
        command = [sys.executable, "-m", "cgpu_cli.main", *words, "--driver-dir"]
        done = node.user.run_command(node.user.as_user([*command, str(other.driver)]))
        assert (done.returncode, done.stdout) == (2, "")
        assert f"shares the GPUs of {node.root.driver}, not of {other.driver}\n" in done.stderr
        own = node.user.as_user([*command[:3], "ls", "--driver-dir", str(node.root.driver)])
        assert node.user.run_command(own).returncode == 0
    finally:
        node.end()
