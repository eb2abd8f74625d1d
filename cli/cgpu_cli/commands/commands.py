"""The commands of ``cgpu``, and its command line."""

from __future__ import annotations

import argparse
import shlex
from typing import Protocol

from cgpu_cli.commands.completion import PROGRAMS, Completion
from cgpu_cli.commands.demo import Demo
from cgpu_cli.commands.doctor import Doctor
from cgpu_cli.commands.get import Get
from cgpu_cli.commands.install import Install, Uninstall
from cgpu_cli.commands.ls import Ls
from cgpu_cli.commands.plan import ShowPlan
from cgpu_cli.commands.probe import Probe
from cgpu_cli.commands.set import Set
from cgpu_cli.commands.top import Top
from cgpu_cli.commands.upgrade import Upgrade
from cgpu_cli.running import options
from cgpu_env.commandline import Parser
from cgpu_node import installation
from cgpu_node.paths import DRIVER_VARIABLE, STATE_VARIABLE, read_variable


class Command(Protocol):
    """A command of ``cgpu``. The first line of its class's docstring is its help."""

    name: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Describe the command's own arguments."""

    def run(self, given: argparse.Namespace) -> int:
        """Run the command, and return the exit status. A CgpuError is shown as one sentence."""


class Help:
    """Show what a command does and its options; without a command, list the commands."""

    name = "help"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command to explain."""
        names = [*(command.name for command in COMMANDS), *_PROGRAMS]
        parser.add_argument("about", metavar="COMMAND", nargs="?", choices=names)

    def run(self, given: argparse.Namespace) -> int:
        """Print what ``--help`` prints."""
        if given.about in _PROGRAMS:
            is_run = given.about.endswith("run")
            print(options.USAGE if is_run else PROGRAMS["cgpu-smi"]().format_help(), end="")
        else:
            build_parser().parse_args([*([given.about] if given.about else []), "--help"])
        return 0


_PROGRAMS = ("smi", "cgpu-smi", "run", "cgpu-run")  # that ``cgpu help`` shows beside its commands
COMMANDS: tuple[Command, ...] = (
    ShowPlan(),
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
    Help(),
)


def build_parser() -> Parser:
    """Return the parser of the command line, one subcommand for each of ``COMMANDS``."""
    parser = Parser(
        prog="cgpu",
        description="Share GPUs between containers.",
        epilog=_format_epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_version("cgpu")
    _add_directories(parser, read_variable(DRIVER_VARIABLE), read_variable(STATE_VARIABLE))
    subparsers = parser.add_subparsers(metavar="COMMAND")
    for command in COMMANDS:
        text = (command.__doc__ or "").splitlines()[0]
        sub = subparsers.add_parser(command.name, help=text, description=text)
        _add_directories(sub, argparse.SUPPRESS, argparse.SUPPRESS)
        command.add_arguments(sub)
        sub.set_defaults(command=command)
    return parser


def _format_epilog() -> str:
    """Return the end of the help: where the files for users are, in an installation or a clone."""
    shared, clone = installation.find_shared_folder(), installation.find_clone()
    if shared is not None:
        found = "" if shared == "/usr/share" else f"-M {shlex.quote(f'{shared}/man')} "
        page, documents, settings = f"{found}7 cgpu", f"{shared}/doc/cgpu", f"{shared}/cgpu"
    elif clone is not None:
        page = shlex.quote(f"{clone}/docs/man/cgpu.7")
        documents, settings = f"{clone}/docs", f"{clone}/deploy"
    else:
        return ""
    return (
        f"manual pages: man {page} (variables, policies, examples)\n"
        f"documents: {documents}\n"
        f"settings to copy, alert rules, dashboard, RuntimeClass: {settings}\n"
    )


def _add_directories(
    parser: argparse.ArgumentParser, driver: str | None, state: str | None
) -> None:
    """Add both options, which the user may write before the command or after it."""
    where = "where the driver's libraries are"
    parser.add_argument("--driver-dir", metavar="DIR", default=driver, help=where)
    parser.add_argument("--state-dir", metavar="DIR", default=state, help="where state is kept")
