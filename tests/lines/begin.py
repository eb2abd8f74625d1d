"""Opens the file in which lines are noted; each process's first module of ours runs this."""

from __future__ import annotations

import builtins
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def begin(notes: str) -> None:
    """Let ``__ran__`` be the file ``notes``; in vain where it is out of reach."""
    ran: Any = {}
    try:
        if "importtime" not in sys._xoptions:  # noqa: SLF001 - else what we import is listed
            ran = _shared(notes)
    except OSError:
        pass
    builtins.__ran__ = ran  # type: ignore[attr-defined]


def _shared(path: str) -> object:
    from mmap import mmap  # noqa: PLC0415 - not where imports are listed

    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    own = os.dup(file)
    os.close(own)
    shared = mmap(file, 0)  # opens the file again, as number ``own``
    os.close(file)
    os.close(own)  # some tests list what a process has open
    return shared
