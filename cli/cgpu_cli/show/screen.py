"""What prints in colours."""

from __future__ import annotations

from typing import NoReturn

from rich.console import Console


class Screen(Console):
    """A console that raises, as ``print`` does, when its reader has gone away."""

    def on_broken_pipe(self) -> NoReturn:
        """Called while the error is handled; rich's own ends the program."""
        raise  # noqa: PLE0704 (BrokenPipeError)
