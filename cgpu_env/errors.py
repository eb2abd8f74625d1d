"""The base class of every error that cgpu reports to a user."""

from __future__ import annotations

import errno

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

REFUSED = 2
LONGEST_VALUE = 60
LONGEST_PATH = 400
# These errors show nothing about a file: the process or the machine has no resources left.
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_WAIT = "wait until others have ended, or raise the limit of open files; nothing is lost"


class CgpuError(Exception):
    """A message for the user, as one sentence. Only a ``main`` prints it and exits.

    Attributes:
        exit_code: the exit status of a command that ends with this error.
        hint: what to do about it, or an empty string.
    """

    exit_code = REFUSED

    def __init__(self, message: str, *, hint: str = "", exit_code: int = REFUSED) -> None:
        super().__init__(message)
        self.hint = hint
        self.exit_code = exit_code


class EnvError(CgpuError):
    """A container's environment asks for something that is not allowed."""


def printable(value: str, longest: int = LONGEST_VALUE) -> str:
    """Return ``value`` for a one-line message: only printable characters, and cut if it is long."""
    cut = value if len(value) <= longest else value[:longest] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)


def find_nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the word of ``known`` that is most like the misspelt ``word``, or None."""
    from difflib import get_close_matches  # noqa: PLC0415 (heavy, and for a refusal only)

    found = get_close_matches(word[:LONGEST_VALUE], [*known], n=1)
    return found[0] if found else None


def format_suggestion(word: str, known: Iterable[str]) -> str:
    """Return how a refusal of the misspelt ``word`` ends; "" if no word of ``known`` is like it."""
    near = find_nearest(word, known)
    return f": did you mean {near}?" if near else ""


def env_error(variable: str, value: str | None, allowed: str) -> EnvError:
    """Return the error for ``variable`` with ``value`` (None: not set). ``allowed``: what is."""
    given = f"{variable}={printable(value)}" if value is not None else f"{variable} is not set"
    return EnvError(f"{given}: {allowed}")


def refuse_exhausted(error: OSError, subject: str, hint: str = _WAIT) -> None:
    """Refuse if an error shows that we could not look: what exists must not count as missing.

    Raises:
        CgpuError: the error shows that. The sentence is about ``subject``, which cannot be seen.
    """
    if error.errno in _EXHAUSTED:
        raise CgpuError(f"cannot see {subject}: {error.strerror}", hint=hint) from None
