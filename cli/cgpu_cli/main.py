"""``cgpu``: runs one of its ``commands``."""

from __future__ import annotations

from typing import NoReturn

from cgpu_env import program


def main() -> NoReturn:
    """Run one command and exit: 2 where it refuses or the command line is wrong."""
    program.run("cgpu", _work)


def _work() -> int:
    from cgpu_cli.commands.commands import arguments

    given = arguments().parse_args()
    status: int = given.command.run(given)
    return status


if __name__ == "__main__":
    main()
