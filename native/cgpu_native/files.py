"""Creates ledgers, and opens a container's files without waiting, for all code of the host.

A container must not be able to hold up a reader of its files. Opening a file on which it holds a
lease waits 45 s (``fcntl(2)``, ``F_SETLEASE``), and opening a pipe may wait for ever. So opening
never waits, and takes only regular files. A test makes sure that no other code opens them.
"""

from __future__ import annotations

import os
import stat

from cgpu_native._native import lib
from cgpu_native.errors import LEASED, FormatError, check

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


def create_ledger(directory: int | os.PathLike[str] | str, name: str) -> None:
    """Make an empty ledger file ``name`` in ``directory``, a path or an open descriptor of it.

    Raises:
        OSError: if the file exists or cannot be made; nothing is left then.
    """
    if isinstance(directory, int):
        check(lib.cgpu_ledger_create(directory, os.fsencode(name)), f"make ledger {name}")
        return
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        create_ledger(fd, name)
    finally:
        os.close(fd)
