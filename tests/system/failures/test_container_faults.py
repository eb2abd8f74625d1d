"""A container that is deleted while it holds the GPU keeps nobody waiting (REL-2, REL-3)."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from lab.containers.engines import Volume
from lab.machine.node import share
from lab.shares.compute import TAG, spin_program, wait_for
from lab.shares.compute_player import TIMES, Player, gap_after, judge, usual_gap_ms, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lab.containers.engines import Bundle
    from lab.machine.node import Node

pytestmark = [pytest.mark.system, pytest.mark.alone(5), pytest.mark.timeout(600)]

SPIN = "/bin/spin"


def start(node: Node, made: Bundle) -> Player:
    """Run the bundle by cgpu-runtime and runc."""
    process = subprocess.Popen(
        made.enclosure.command(*made.start_command(node.command())),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    folder = node.state / "containers" / made.id
    wait_until(folder.exists, f"{made.id} is admitted")
    return Player(process, folder)


def delete(node: Node, made: Bundle, player: Player) -> None:
    made.enclosure.run(*node.command(), "delete", "--force", made.id)
    player.process.communicate()


@pytest.fixture
def spinning(bundle: Callable[[Path], Bundle], debian_root: Path) -> Callable[[str], Bundle]:
    """A container that will spin under a tag."""

    def prepare(tag: str) -> Bundle:
        made = bundle(debian_root)
        how = [SPIN, "us=100", "seconds=0"]
        made.prepare(how, {**share(3), TAG: tag}, [Volume(spin_program(), SPIN)])
        return made

    return prepare


def test_a_container_deleted_while_it_holds_costs_nobody_more_than_250_ms(
    node: Node, spinning: Callable[[str], Bundle]
) -> None:
    steady, victim = spinning("steady"), spinning("victim")
    player = start(node, steady)
    wait_for(node.driver, ["steady"])
    usual, gaps = usual_gap_ms(player), []
    for _ in range(TIMES):
        other = start(node, victim)
        wait_for(node.driver, ["victim"])
        wait_until(lambda: not other.holds(), "a turn begins")  # noqa: B023
        wait_until(other.holds, "it holds the gate")
        gaps.append(gap_after([player], lambda: delete(node, victim, other)))  # noqa: B023
    delete(node, steady, player)
    judge("container deleted", usual, gaps)
