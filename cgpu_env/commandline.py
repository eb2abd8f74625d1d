"""The common parts of all programs' command lines."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import IO

from cgpu_env.errors import format_suggestion, printable
from cgpu_env.version import VERSION


class Parser(argparse.ArgumentParser):
    """A parser that reports if help cannot be printed, and suggests a name for a misspelt word."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuse words that no option or command takes: each command's parser knows its options."""
        words = sys.argv[1:] if args is None else [*args]
        self._check_options(words)
        given, rest = super().parse_known_args(words, namespace)
        if rest:
            self.error(f"unrecognized arguments: {printable(' '.join(rest))}")
        if self._subparsers is not None and "command" not in given:  # a misspelt option goes first
            self.error("the following arguments are required: COMMAND")
        return given, rest

    def _check_options(self, words: Sequence[str]) -> None:
        """Refuse a misspelt option before its value is taken for the command or an argument."""
        is_value = False
        for word in words:
            name, equals, _ = word.partition("=")
            if word == "--" or (self._subparsers and not is_value and not word.startswith("-")):
                return  # a command has options of its own
            if name.startswith("-") and name != "-" and not name[1:2].isdecimal():
                known = self._option_string_actions
                meant = [action for option, action in known.items() if option.startswith(name)]
                if not meant and word[:2] not in known:
                    self.error(f"unknown option {printable(word)}{format_suggestion(name, known)}")
                is_value = not equals and any(action.nargs is None for action in meant)
            else:
                is_value = False

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> object:
        """Refuse an empty value, as in ``--state-dir "$DIR"`` with an unset variable.

        Only an option whose type is named ``str`` may have one.
        """
        if action.option_strings and action.type is not str and "" in arg_strings:
            raise argparse.ArgumentError(action, "the value is empty")
        return super()._get_values(action, arg_strings)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            near = format_suggestion(str(value), map(str, action.choices or ()))
            error.message = f"invalid choice: {value!r}{near}" if near else error.message
            raise

    def _print_message(self, message: str, file: IO[str] | None = None) -> None:  # type: ignore[override]
        """Print help or version; fail if that is not possible, which ``argparse`` ignores."""
        if file is not None and file is sys.stdout:
            file.write(message)
        else:
            super()._print_message(message, file)

    def add_version(self, program: str) -> None:
        """Add ``--version``."""
        self.add_argument("--version", action="version", version=f"{program} {VERSION}")


def parse_address(word: str) -> tuple[str, int]:
    """Return the address and port to listen on that an option names."""
    host, _, port = word.rpartition(":")
    if not host or not port.isdecimal() or not 0 <= int(port) < 1 << 16:
        raise argparse.ArgumentTypeError(f"{word}: expected ADDRESS:PORT, such as 127.0.0.1:32766")
    return host.strip("[]"), int(port)
