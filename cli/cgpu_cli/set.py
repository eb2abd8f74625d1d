"""``cgpu set``: other rules for a GPU, another weight or priority for a container, at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cgpu_env import CgpuError
from cgpu_env.errors import shown
from cgpu_hook.client import ask_started
from cgpu_hook.paths import open_state

if TYPE_CHECKING:
    import argparse


class Set:
    """Change policy, max_inst, prio_ratio of a GPU; or weight, highprio of a container."""

    name = "set"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """What to change, and how."""
        parser.add_argument(
            "target", metavar="TARGET", help="a GPU's index or UUID, or a container's id"
        )
        parser.add_argument(
            "values", metavar="NAME=VALUE", nargs="+", help="such as policy=2, weight=4, highprio=1"
        )

    def run(self, given: argparse.Namespace) -> int:
        """Ask the server to do it; it is in force when this returns."""
        values = dict(map(_pair, given.values))
        request = {"request": "set", "target": given.target, "values": values}
        ask_started(open_state(given.state_dir), given.driver_dir, request)
        return 0


def _pair(word: str) -> tuple[str, int | str]:
    name, equals, value = word.partition("=")
    if not equals or not name:
        raise CgpuError(f"{shown(word)}: expected NAME=VALUE, such as weight=4")
    number = value.isascii() and value.isdecimal()
    return name, int(value) if number else value  # the server says what is allowed
