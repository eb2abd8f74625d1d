"""``cgpu completion``: makes a shell complete the words of ``cgpu`` and its other programs."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from cgpu_cli.commands.completers import PREAMBLES, set_completer
from cgpu_node.settings.rules import POLICIES

SHELLS = ("bash", "zsh", "fish")
_LISTED = "targets"


class Completion:
    """Print the completion script of a shell: eval "$(cgpu completion bash)"."""

    name = "completion"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the shell and the program."""
        parser.add_argument(
            "shell",
            choices=(*SHELLS, _LISTED),
            help="the shell; targets: the names that can be used now",
        )
        parser.add_argument(
            "program", nargs="?", choices=tuple(PROGRAMS), help="only for this program"
        )

    def run(self, given: argparse.Namespace) -> int:
        """Print a script, or the names."""
        if given.shell == _LISTED:
            print("\n".join(_list_targets(given)))
            return 0
        import shtab

        for program in [given.program] if given.program else PROGRAMS:
            preamble = PREAMBLES.get(given.shell, "") if program == "cgpu" else ""
            print(shtab.complete(PROGRAMS[program](), given.shell, preamble=preamble))
        return 0


def _build_cgpu_parser() -> argparse.ArgumentParser:
    from cgpu_cli.commands.commands import build_parser

    return build_parser()


def _build_smi_parser() -> argparse.ArgumentParser:
    from cgpu_cli.smi import build_parser

    return build_parser()


def _build_run_parser() -> argparse.ArgumentParser:
    """Return a parser with the options of ``cgpu-run``, which itself reads them without one."""
    import shtab

    from cgpu_cli.running import options

    parser = argparse.ArgumentParser(prog="cgpu-run", add_help=False)
    for name in options.FLAGS:
        parser.add_argument(f"--{name}", action="store_true", help=options.help_of(name))
    for name in options.VALUES:
        choices = POLICIES if name == "policy" else None
        parser.add_argument(f"--{name}", choices=choices, help=options.help_of(name))
    words = parser.add_argument("program", nargs="*")
    set_completer(words, shtab.FILE)
    return parser


def _build_server_parser() -> argparse.ArgumentParser:
    from cgpu_server.main import build_parser

    return build_parser()


PROGRAMS: dict[str, Callable[[], argparse.ArgumentParser]] = {
    "cgpu": _build_cgpu_parser,
    "cgpu-run": _build_run_parser,
    "cgpu-smi": _build_smi_parser,
    "cgpud": _build_server_parser,
}


def _list_targets(given: argparse.Namespace) -> list[str]:
    """Return the node, its GPUs and its containers, from a running server; start none for this.

    For containers: their ids, and those of their names that are unambiguous and one word.
    """
    from cgpu_cli.running.guest import is_served
    from cgpu_node import client
    from cgpu_node.paths import ROOT_STATE, state_path
    from cgpu_node.shares import target

    state = ROOT_STATE if is_served(given.state_dir) else state_path(given.state_dir)
    answer = client.send_request(state, {"request": "status"})
    gpus = [str(gpu["index"]) for gpu in answer["gpus"]]
    there = {container["id"]: container["name"] for container in answer["containers"]}
    names = [
        n
        for n in there.values()
        if n.split() == [n] and len(target.match_containers(n, there)) == 1
    ]
    return ["node", "all", *gpus, *there, *names]
