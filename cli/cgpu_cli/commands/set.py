"""``cgpu set``: changes rules of a GPU, or weight, priority or cap of a container, at once."""

from __future__ import annotations

import argparse
import sys

from cgpu_cli.answer import print_json
from cgpu_cli.commands.completers import SETTINGS, TARGETS, set_completer
from cgpu_cli.running.guest import ask_server
from cgpu_env import CgpuError
from cgpu_env.errors import printable
from cgpu_env.values import LARGEST_BYTES, parse_integer

_NODE_KEYS = ("default_memsize", "inst_ctl", "upgrade")


class Set:
    """Change policy, max_inst, prio_ratio of a GPU; weight, highprio, memsize of a container."""

    name = "set"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the target and its new values."""
        target = parser.add_argument(
            "target",
            metavar="TARGET",
            type=_parse_target,
            help="a GPU's index or UUID, or all for every GPU; a container's id or name, or"
            " GPU/ID for its memsize on one; node, for default_memsize, inst_ctl and upgrade",
        )
        set_completer(target, TARGETS)
        values = parser.add_argument(
            "values",
            metavar="NAME=VALUE",
            nargs="+",
            help="such as policy=fixed (or its number), weight=4, memsize=4GiB (or 512MiB, 40%%,"
            " 6/15; without a unit it is in bytes)",
        )
        set_completer(values, SETTINGS)
        parser.add_argument("--json", action="store_true", help="for programs")

    def run(self, given: argparse.Namespace) -> int:
        """Send the values to the server; they are in force when this returns."""
        values = dict(map(_parse_setting, given.values))
        request = {"request": "set", "target": given.target, "values": values}
        notes = ask_server(given, request).get("notes", [])  # an older server sends none
        if given.json:
            print_json({"notes": notes})
        else:
            for note in notes:
                print(f"cgpu: note: {note}", file=sys.stderr)
        return 0


def _parse_target(word: str) -> str:
    """Return the word, unless it is a setting, which means that the user typed no target."""
    name, equals, _ = word.partition("=")
    if equals:
        missing, example = _suggest_target(name)
        if missing:
            hint = f"cgpu set {example} {printable(word)}"
            raise CgpuError(f"set {printable(word)}: the target is missing: {missing}", hint=hint)
    return word


def _suggest_target(name: str) -> tuple[str, str]:
    """Return which targets have a setting ``name``, and an example; two empty texts if none has."""
    from cgpu_node.settings.rules import RANGES
    from cgpu_node.shares.change import CONTAINER_KEYS
    from cgpu_node.shares.target import NODE

    if name in RANGES:
        return "a GPU's index or UUID, or all", "all"
    if name in CONTAINER_KEYS:
        return "a container's id or name", "ID"
    return (NODE, NODE) if name in _NODE_KEYS else ("", "")


def _parse_setting(word: str) -> tuple[str, int | str]:
    name, equals, value = word.partition("=")
    if not equals or not name:
        raise CgpuError(f"{printable(word)}: expected NAME=VALUE, such as weight=4")
    number = parse_integer(value, LARGEST_BYTES)
    return name, value if number is None else number  # the server checks it
