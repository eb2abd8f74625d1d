"""docs/json.md describes what every ``--json`` prints."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_cli.commands.commands import COMMANDS
from lab.products.json_page import check, described
from lab.worlds.cgpu_run import PROGRAMS, Node, World
from lab.worlds.hook import SIX
from lab.worlds.hook import World as HookWorld
from lab.worlds.server import environment, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration
HOLD = PROGRAMS / "hold.py"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """A node with one session, which holds memory."""
    made = World()
    process = made.start("--mem", "6/15", "--", sys.executable, "-I", HOLD)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield made
    process.communicate("\n")


def answer(world: World, *words: str) -> dict[str, Any]:
    """What a command of ``cgpu`` prints with ``--json``."""
    places = ("--driver-dir", str(world.driver), "--state-dir", str(world.state))
    done = world.run_command([sys.executable, "-m", "cgpu_cli.main", *places, *words, "--json"])
    return parsed(done)


def parsed(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.stdout, done.stderr
    shown: dict[str, Any] = json.loads(done.stdout)
    return shown


def test_every_answer_begins_with_the_version_of_the_format_and_the_time(world: World) -> None:
    before = datetime.now(timezone.utc)
    shown = world.smi()
    after = datetime.now(timezone.utc)
    assert [*shown][:2] == ["version", "time"]
    assert shown["version"] == 1
    assert shown["time"].endswith("Z")
    time = datetime.fromisoformat(shown["time"].replace("Z", "+00:00"))
    assert before.replace(microsecond=0) <= time <= after


def test_every_command_that_prints_json_has_a_section() -> None:
    with_json = set()
    for command in COMMANDS:
        parser = argparse.ArgumentParser()
        command.add_arguments(parser)
        if "--json" in parser.format_help():
            with_json.add(command.name)
    assert {title.split()[1] for title in described() if title.startswith("cgpu ")} == with_json


def test_what_get_prints_is_described(world: World) -> None:
    # The server says so once it has seen the session.
    wait_until(lambda: answer(world, "get")["gpus"][0]["figures"], "it is arbitrated")
    check("cgpu get --json", answer(world, "get"))
    answer(world, "set", "node", "default_memsize=40%")
    check("cgpu get --json", answer(world, "get"))
    answer(world, "set", "node", "default_memsize=0")
    check("cgpu get --json NODE", answer(world, "get", "node"), answer(world, "get", "0/policy"))


def test_what_set_and_ls_print_is_described(world: World) -> None:
    check("cgpu set --json", answer(world, "set", "0", "prio_ratio=80"))
    lowered = answer(world, "set", world.sessions()[0], "memsize=50MiB")
    check("cgpu set --json", lowered)
    assert len(lowered["notes"]) == 1
    answer(world, "set", world.sessions()[0], "memsize=6GiB")
    check("cgpu ls --json", answer(world, "ls"))
    check("cgpu ls --recursive --json", answer(world, "ls", "-R"))


def test_what_doctor_and_upgrade_print_is_described(world: World) -> None:
    check("cgpu doctor --json", answer(world, "doctor"))
    check("cgpu upgrade --json", answer(world, "upgrade", "--dry-run"))


def test_what_plan_prints_is_described(tmp_path: Path) -> None:
    world = HookWorld(tmp_path / "world")
    world.write_config(SIX)
    places = ("--driver-dir", str(world.driver), "--state-dir", str(world.state))
    words = [sys.executable, "-m", "cgpu_cli.main", *places, "plan", str(world.config), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment())
    check("cgpu plan --json", parsed(done))


@pytest.fixture
def node() -> Iterator[Node]:
    made = Node()
    yield made
    made.end()


def test_what_smi_prints_is_described(world: World, node: Node) -> None:
    """CLI-3: also the entry of those that a user does not see one by one."""
    running = node.root.start("--mem", "6/15", "--", "sleep", "60")
    wait_until(lambda: node.status()["containers"], "it is admitted")
    check("cgpu-smi --json", world.smi(), node.user.smi())
    running.kill()
    running.communicate()
