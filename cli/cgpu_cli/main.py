"""``cgpu``: runs one of its ``commands``."""

from __future__ import annotations

import sys
from typing import NoReturn

from cgpu_env import program


def main() -> NoReturn:
    """Run one command and exit: 2 where it refuses or the command line is wrong.

    ``cgpu smi`` and ``cgpu run`` are the programs of these names.
    """
    word = sys.argv[1:2]
    if word == ["smi"]:
        del sys.argv[1]
        from cgpu_cli import smi

        smi.main()
    if word == ["run"]:
        del sys.argv[1]
        from cgpu_cli import run

        run.main()
    if word == ["version"]:
        sys.argv[1] = "--version"
    program.run("cgpu", _work)


def _work() -> int:
    from cgpu_cli.commands.commands import arguments

    given = arguments().parse_args()
    status: int = given.command.run(given)
    return status


if __name__ == "__main__":
    main()
