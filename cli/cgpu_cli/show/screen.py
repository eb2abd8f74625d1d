"""The console for coloured output, and whether the locale can show more than ASCII."""

from __future__ import annotations

import locale
import os
import sys
from typing import NoReturn

from rich.console import Console

from cgpu_env import parse_environment


def is_ascii() -> bool:
    """Whether the locale has only ASCII, so that nothing else may be drawn.

    Under the locales C and POSIX, Python writes UTF-8 nevertheless. Up to 3.14, its UTF-8 mode
    tells them from others. From 3.15 on, that mode is on under every locale, and the locale's
    encoding tells them, unless Python has replaced the locale by one with UTF-8.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    is_c = bool(sys.flags.utf8_mode) and "PYTHONUTF8" not in os.environ
    if is_c and sys.version_info >= (3, 15):
        is_c = not locale.getencoding().lower().startswith("utf") or _is_coerced()
    return is_c or not encoding.lower().startswith("utf")


def _is_coerced() -> bool:
    """Whether Python has replaced the locale. If so, it has set ``LC_CTYPE`` (PEP 538)."""
    with open("/proc/self/environ", "rb") as file:
        given = parse_environment(os.fsdecode(file.read()).split("\0"))
    return given.get("LC_CTYPE") != os.environ.get("LC_CTYPE")


class Screen(Console):
    """A console that raises an error when its reader has gone away, as ``print`` does."""

    def on_broken_pipe(self) -> NoReturn:
        """Raise the error that rich is handling. Its own method would end the program."""
        raise  # noqa: PLE0704 (BrokenPipeError)
