"""What the command lines of all programs have in common."""

from __future__ import annotations

import argparse
import sys
from typing import IO

from cgpu_env.version import VERSION


class Parser(argparse.ArgumentParser):
    """A parser whose help cannot get lost: ``argparse`` ignores that it could not be printed."""

    def _print_message(self, message: str, file: IO[str] | None = None) -> None:  # type: ignore[override]
        """Print help and version, or raise what kept them from being printed."""
        if file is not None and file is sys.stdout:
            file.write(message)
        else:
            super()._print_message(message, file)

    def add_version(self, program: str) -> None:
        """``--version``."""
        self.add_argument("--version", action="version", version=f"{program} {VERSION}")
