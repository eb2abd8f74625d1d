"""``cgpu ls``: the names in the control tree, as ``ls /run/cgpu_km`` shows them."""

from __future__ import annotations

import argparse
from typing import Any

from cgpu_cli.answer import print_json
from cgpu_cli.commands.completers import TARGETS, set_completer
from cgpu_cli.running.guest import ask_server


class Ls:
    """List the control tree: settings of the node, GPUs, containers."""

    name = "ls"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the folder and the options for output."""
        path = parser.add_argument(
            "path",
            metavar="PATH",
            nargs="?",
            default="",
            help="such as 0 or 0/3f2a91b0c4d5, or a container's id or name",
        )
        set_completer(path, TARGETS)
        parser.add_argument(
            "-R",
            "--recursive",
            action="store_true",
            help="also the content of all folders below it",
        )
        parser.add_argument("--json", action="store_true", help="for programs")

    def run(self, given: argparse.Namespace) -> int:
        """Print a line for each name. Names of folders end with a slash."""
        request = {"request": "ls", "path": given.path, "recursive": given.recursive}
        answer = ask_server(given, request)
        if given.json:
            print_json(answer)
        elif "listing" in answer:
            blocks = [
                f"{path or '/'}:\n{_format_names(its)}" for path, its in answer["listing"].items()
            ]
            print("\n\n".join(blocks))
        else:
            print(_format_names(answer))
        return 0


def _format_names(listed: dict[str, Any]) -> str:
    folders = listed["folders"]
    return "\n".join(f"{name}/" if name in folders else name for name in listed["names"])
