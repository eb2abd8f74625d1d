"""Opens a container's files without waiting. All code of the host opens them here.

A container must not be able to hold up a reader of its files. Opening a file on which it holds a
lease waits 45 s (``fcntl(2)``, ``F_SETLEASE``), and opening a pipe may wait for ever. So opening
never waits, and takes only regular files. A test makes sure that no other code opens them.
"""

from __future__ import annotations

import os
import stat

from cgpu_native._native import lib
from cgpu_native.errors import LEASED, FormatError

_ALWAYS = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY


def open_file(path: os.PathLike[str] | str, flags: int = os.O_RDONLY) -> int:
    """A descriptor of the regular file at ``path``.

    Raises:
        BlockingIOError: a process holds a lease on it, which the kernel now breaks.
        OSError: it cannot be opened.
        FormatError: it is no regular file.
    """
    try:
        fd = os.open(path, flags | _ALWAYS)
    except BlockingIOError as error:
        raise BlockingIOError(error.errno, LEASED, os.fspath(path)) from None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise FormatError(lib.CGPU_EFORMAT, f"{os.fspath(path)}: not a regular file")


def read_file(path: os.PathLike[str] | str, most: int) -> bytes:
    """The first ``most`` bytes of the file at ``path``.

    Raises:
        OSError: it cannot be read; see ``open_file``.
        FormatError: it is no regular file.
    """
    fd = open_file(path)
    try:
        return os.pread(fd, most, 0)
    finally:
        os.close(fd)
