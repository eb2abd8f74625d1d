"""What the command lines of all programs have in common."""

from __future__ import annotations

import argparse
import sys
from typing import IO, TYPE_CHECKING

from cgpu_env.errors import nearest, shown
from cgpu_env.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence


class Parser(argparse.ArgumentParser):
    """A parser that reports if help cannot be printed, and suggests a name for a misspelt word."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuse the rest here: the parser of a command knows its own options."""
        given, rest = super().parse_known_args(args, namespace)
        if rest:
            option = next((word for word in rest if word.startswith("-")), "")
            near = nearest(option.partition("=")[0], self._option_string_actions)
            self.error(f"unrecognized arguments: {shown(' '.join(rest))}{_guess(near)}")
        if self._subparsers is not None and "command" not in given:  # a misspelt option goes first
            self.error("the following arguments are required: COMMAND")
        return given, rest

    def _check_value(self, action: argparse.Action, value: object) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            near = nearest(str(value), map(str, action.choices or ()))
            error.message = f"invalid choice: {value!r}{_guess(near)}" if near else error.message
            raise

    def _print_message(self, message: str, file: IO[str] | None = None) -> None:  # type: ignore[override]
        """Print help and version; ``argparse`` ignores that they could not be printed."""
        if file is not None and file is sys.stdout:
            file.write(message)
        else:
            super()._print_message(message, file)

    def add_version(self, program: str) -> None:
        """``--version``."""
        self.add_argument("--version", action="version", version=f"{program} {VERSION}")


def _guess(near: str | None) -> str:
    return f": did you mean {near}?" if near else ""


def address(word: str) -> tuple[str, int]:
    """The type of an option that names where to listen."""
    host, _, port = word.rpartition(":")
    if not host or not port.isdecimal() or not 0 <= int(port) < 1 << 16:
        raise argparse.ArgumentTypeError(f"{word}: expected ADDRESS:PORT, such as 127.0.0.1:32766")
    return host.strip("[]"), int(port)
