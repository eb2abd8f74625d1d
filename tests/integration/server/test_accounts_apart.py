"""Who shares a GPU outside one account is informed, at both ends (CLI-2, CLI-3, CLI-4)."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from cgpu_node import accounts
from lab.machine.servers import serving
from lab.worlds.cgpu_run import MIB, NOBODY, PROGRAMS, World
from lab.worlds.server import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration
WHOLE = ("--mem", "15/15", "--")
HOLD = (sys.executable, "-I", PROGRAMS / "hold.py")
HELD = 100 * MIB


class Two(NamedTuple):
    """A user whose program holds the GPU in an account of its own, and root, with another one."""

    user: World
    root: World

    def command(self, world: World, module: str, *words: str) -> subprocess.CompletedProcess[str]:
        """A command of one of the two."""
        named = (*words, "--driver-dir", str(world.driver), *world.flags())
        return world.run_command(world.as_user([sys.executable, "-m", module, *named]))


@pytest.fixture(scope="module")
def two() -> Iterator[Two]:
    user, root = World(root=False), World()
    root.driver = user.driver
    program = user.start(*WHOLE, *HOLD)
    assert program.stdout is not None
    assert program.stdout.readline() == "held\n"
    wait_until(
        lambda: accounts.find_other_accounts("/nowhere", str(user.driver)),
        "its server makes it known",
    )
    yield Two(user, root)
    program.communicate("\n")


def seen(two: Two, world: World) -> str:
    """The sentence about the other account."""
    other = two.user if world is two.root else two.root
    uid = 0 if other.root else NOBODY
    return accounts.format_warning([accounts.Account(uid, str(other.state))])


def test_a_session_says_who_promises_the_same_gpu(two: Two) -> None:
    done = two.root.run(*WHOLE, "true")
    note = f"cgpu-run: note: {seen(two, two.root)}; cgpu-smi shows it\n"
    assert (done.returncode, done.stderr) == (0, note)


def test_smi_shows_memory_that_is_held_outside_its_account(two: Two) -> None:
    """Also where no container is, and no server asks the driver."""
    (gpu,) = two.root.smi()["gpus"]
    assert HELD <= gpu["foreign_bytes"] < 2 * HELD + 300 * MIB
    mib = gpu["foreign_bytes"] // MIB
    assert f"\n{mib}MiB held outside these containers" in _smi(two)
    assert f"Used By Others{' ' * 22}: {mib} MiB" in _smi(two, "-q")
    row = _smi(two, "--query-gpu=memory.foreign", "--format=csv,noheader")
    assert row == f"{mib} MiB\n"
    (own,) = two.user.smi()["gpus"]
    assert own["foreign_bytes"] == 0


def _smi(two: Two, *words: str) -> str:
    done = two.command(two.root, "cgpu_cli.smi", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _doctor(two: Two) -> list[dict[str, Any]]:
    found = json.loads(two.command(two.root, "cgpu_cli.main", "doctor", "--json").stdout)
    return [each for each in found["findings"] if each["check"] == "accounts"]


def test_while_both_promise_it_each_shows_the_other(two: Two) -> None:
    """And root's server logs it."""
    program = two.root.start(*WHOLE, "sleep", "3600")
    beside = str(two.user.state), str(two.user.driver)
    wait_until(lambda: accounts.find_other_accounts(*beside), "its server makes it known")
    for world in two:
        assert world.smi()["notes"] == [f"{seen(two, world)}; {accounts.ADVICE}"]
    assert "15109MiB of 15109MiB are promised: memory can run out below a cap" in _smi(two)
    [found] = _doctor(two)
    assert (found["level"], found["value"]) == ("warning", str(two.user.state))
    assert found["mend"] == "cgpu install systemd --now"
    log = two.root.state / "cgpud.log"
    wait_until(lambda: f"account_apart path={two.user.state} " in log.read_text(), "it is logged")
    program.kill()
    program.communicate()


def test_an_account_of_another_gpu_is_none_of_its_business(two: Two) -> None:
    assert World().run(*WHOLE, "true").stderr == ""
    assert accounts.find_other_accounts(str(two.root.state), "/nowhere") == []


def test_an_account_without_shares_is_not_named() -> None:
    """Its server lives on for a minute."""
    world = World()
    program = world.start(*WHOLE, "sleep", "3600")
    beside = "/nowhere", str(world.driver)
    wait_until(lambda: accounts.find_other_accounts(*beside), "its server makes it known")
    assert accounts.find_other_accounts(*beside) == [accounts.Account(0, str(world.state))]
    assert accounts.find_other_accounts(str(world.state), str(world.driver)) == []
    program.kill()
    program.communicate()
    wait_until(lambda: accounts.find_other_accounts(*beside) == [], "it has no shares any more")
    assert serving(world.state)
