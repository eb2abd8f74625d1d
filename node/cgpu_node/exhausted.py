"""Errors that say nothing about a file: the process or the machine has no means left to look."""

from __future__ import annotations

import errno

from cgpu_env.errors import CgpuError

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_HINT = "wait until others have ended, or raise the limit of open files; nothing is lost"


def refuse_exhausted(error: OSError, what: str, hint: str = _HINT) -> None:
    """Refuse if ``error`` is of this kind: what exists must not count as missing.

    Raises:
        CgpuError: it is; the sentence names ``what`` cannot be seen.
    """
    if error.errno in _EXHAUSTED:
        raise CgpuError(f"cannot see {what}: {error.strerror}", hint=hint) from None
