"""``cgpu``: runs one of its ``commands``."""

from __future__ import annotations

import sys
from typing import NoReturn

from cgpu_env import program


def main() -> NoReturn:
    """Run one command and exit, with status 2 if it refuses or the command line is wrong.

    ``cgpu smi`` and ``cgpu run`` are the programs of these names.
    """
    at = _find_command()
    word = sys.argv[at : at + 1]
    if word == ["smi"]:
        del sys.argv[at]
        from cgpu_cli import smi

        smi.main()
    if word == ["run"]:
        del sys.argv[at]
        from cgpu_cli import run

        run.main()
    if word == ["version"]:
        sys.argv[at] = "--version"
    program.run("cgpu", _run_command)


def _find_command() -> int:
    """Return the index of the command in ``sys.argv``: after options, each with a value.

    The program that gets the command line takes the same options.
    """
    at = 1
    while at < len(sys.argv) and sys.argv[at].startswith("--"):
        at += 1 if "=" in sys.argv[at] else 2
    return at


def _run_command() -> int:
    from cgpu_cli.commands.commands import build_parser

    given = build_parser().parse_args()
    status: int = given.command.run(given)
    return status


if __name__ == "__main__":
    main()
