"""What the command lines of all programs have in common."""

from __future__ import annotations

import argparse
from typing import IO

from cgpu_env.version import VERSION


class Parser(argparse.ArgumentParser):
    """A parser whose help cannot get lost: ``argparse`` ignores that it could not be printed."""

    def print_help(self, file: IO[str] | None = None) -> None:  # type: ignore[override]
        """Print it, or raise what kept it from being printed."""
        print(self.format_help(), end="", file=file)

    def add_version(self, program: str) -> None:
        """``--version``."""
        self.add_argument("--version", action="version", version=f"{program} {VERSION}")
