"""The console for coloured output, and whether the locale can show more than ASCII."""

from __future__ import annotations

import locale
import os
import sys
from typing import NoReturn

from rich.console import Console

from cgpu_env import parse_environment


def is_ascii() -> bool:
    """Whether the locale has only ASCII, so that nothing else is drawn.

    Under C and POSIX Python still writes UTF-8; only its UTF-8 mode shows that it is such a locale.
    From 3.15 on, Python is in that mode under every locale. Then the locale's encoding shows it,
    unless Python has replaced the locale by one in UTF-8.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    is_c = bool(sys.flags.utf8_mode) and "PYTHONUTF8" not in os.environ
    if is_c and sys.version_info >= (3, 15):
        is_c = not locale.getencoding().lower().startswith("utf") or _is_coerced()
    return is_c or not encoding.lower().startswith("utf")


def _is_coerced() -> bool:
    """Whether Python has replaced the locale: it sets ``LC_CTYPE`` then (PEP 538)."""
    with open("/proc/self/environ", "rb") as file:
        given = parse_environment(os.fsdecode(file.read()).split("\0"))
    return given.get("LC_CTYPE") != os.environ.get("LC_CTYPE")


class Screen(Console):
    """A console that raises, as ``print`` does, when its reader has gone away."""

    def on_broken_pipe(self) -> NoReturn:
        """Raise the error that rich is handling; its own method ends the program."""
        raise  # noqa: PLE0704 (BrokenPipeError)
