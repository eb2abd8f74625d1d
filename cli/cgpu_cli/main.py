"""``cgpu``: the commands that are not worth a program of their own."""

from __future__ import annotations

import argparse
import signal
import sys
from typing import NoReturn, Protocol

from cgpu_cli.completion import Completion
from cgpu_cli.demo import Demo
from cgpu_cli.doctor import Doctor
from cgpu_cli.get import Get
from cgpu_cli.install import Install, Uninstall
from cgpu_cli.ls import Ls
from cgpu_cli.plan import Plan
from cgpu_cli.probe import Probe
from cgpu_cli.set import Set
from cgpu_cli.top import Top
from cgpu_cli.upgrade import Upgrade
from cgpu_env import CgpuError
from cgpu_env.version import VERSION
from cgpu_hook.paths import DRIVER_VARIABLE, STATE_VARIABLE, named


class Command(Protocol):
    """A command of ``cgpu``; its class's first line of documentation is its help."""

    name: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Describe the command's own arguments."""

    def run(self, given: argparse.Namespace) -> int:
        """Do it, and return the exit status; a CgpuError is shown as one sentence."""


COMMANDS: tuple[Command, ...] = (
    Plan(),
    Probe(),
    Get(),
    Set(),
    Ls(),
    Top(),
    Install(),
    Uninstall(),
    Upgrade(),
    Doctor(),
    Completion(),
    Demo(),
)


def arguments() -> argparse.ArgumentParser:
    """The command line, one subcommand for each of ``COMMANDS``."""
    parser = argparse.ArgumentParser(prog="cgpu", description="Share GPUs between containers.")
    parser.add_argument("--version", action="version", version=f"cgpu {VERSION}")
    _add_directories(parser, named(DRIVER_VARIABLE), named(STATE_VARIABLE))
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        text = (command.__doc__ or "").splitlines()[0]
        sub = subparsers.add_parser(command.name, help=text, description=text)
        _add_directories(sub, argparse.SUPPRESS, argparse.SUPPRESS)
        command.add_arguments(sub)
        sub.set_defaults(command=command)
    return parser


def _add_directories(
    parser: argparse.ArgumentParser, driver: str | None, state: str | None
) -> None:
    """Both options, before the command or after it."""
    where = "where the driver's libraries are"
    parser.add_argument("--driver-dir", metavar="DIR", default=driver, help=where)
    parser.add_argument("--state-dir", metavar="DIR", default=state, help="where state is kept")


def main() -> NoReturn:
    """Run one command and exit: 2 where it refuses or the command line is wrong."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends us quietly, as any command
    given = arguments().parse_args()
    try:
        status = given.command.run(given)
    except CgpuError as error:
        print(f"cgpu: {error}", file=sys.stderr)
        if error.hint:
            print(f"  {error.hint}", file=sys.stderr)
        status = error.exit_code
    sys.exit(status)


if __name__ == "__main__":
    main()
