"""``cgpu ls``: the names in the control tree, as ``ls /run/cgpu_km`` shows them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from cgpu_cli.completion import TARGETS
from cgpu_cli.guest import ask_server

if TYPE_CHECKING:
    import argparse


class Ls:
    """List the control tree: settings of the node, GPUs, containers."""

    name = "ls"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Which folder, and how."""
        path = parser.add_argument(
            "path", metavar="PATH", nargs="?", default="", help="such as 0, or 0/3f2a91b0c4d5"
        )
        path.complete = TARGETS  # type: ignore[attr-defined]
        parser.add_argument("--json", action="store_true", help="for programs")

    def run(self, given: argparse.Namespace) -> int:
        """Print a line for each name; those of folders end with a slash."""
        answer = ask_server(given, {"request": "ls", "path": given.path})
        if given.json:
            print(json.dumps(answer, indent=2))
        else:
            for name in answer["names"]:
                print(f"{name}/" if name in answer["folders"] else name)
        return 0
