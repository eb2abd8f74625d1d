"""Creates ledgers, and opens a container's files without waiting, for all code of the host.

A container must not be able to delay a reader of its files. If it holds a lease on a file, opening
that file waits 45 s (``fcntl(2)``, ``F_SETLEASE``), and opening a pipe may wait for ever. So files
are opened without waiting, and only regular ones are accepted. A test makes sure that no other code
opens them.
"""

from __future__ import annotations

import os
import stat

from cgpu_native._native import ffi, lib
from cgpu_native.errors import LEASED, FormatError, check_status

_LEDGER_BYTES: int = ffi.sizeof("struct cgpu_ledger_file")
_BLOCK_BYTES = 512  # of st_blocks
_ROUNDED_BYTES = 2 << 20  # what a file system may take more than that: a huge page
_ALWAYS = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY


def open_file(path: os.PathLike[str] | str, flags: int = os.O_RDONLY) -> int:
    """Return a descriptor of the regular file at ``path``.

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
    """Return the first ``most`` bytes of the file at ``path``.

    Raises:
        OSError: the file cannot be read; see ``open_file``.
        FormatError: it is no regular file.
    """
    fd = open_file(path)
    try:
        return os.pread(fd, most, 0)
    finally:
        os.close(fd)


def create_ledger(directory: int | os.PathLike[str] | str, name: str) -> None:
    """Make an empty ledger ``name`` in ``directory``, which is a path or an open descriptor.

    Raises:
        OSError: the file exists or cannot be made; nothing is left then.
    """
    if isinstance(directory, int):
        check_status(lib.cgpu_ledger_create(directory, os.fsencode(name)), f"make ledger {name}")
        return
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        create_ledger(fd, name)
    finally:
        os.close(fd)


def cut_ledger(path: os.PathLike[str] | str) -> bool:
    """Cut the ledger at ``path`` back to the size of its format, if it takes more space.

    A container may write to its ledger, and so make it larger or reserve space beyond its end.

    Returns:
        Whether it was cut.

    Raises:
        OSError: it cannot be opened; see ``open_file``.
        FormatError: it is no regular file.
    """
    facts = os.lstat(path)
    is_larger = facts.st_size > _LEDGER_BYTES
    if not is_larger and facts.st_blocks * _BLOCK_BYTES <= _LEDGER_BYTES + _ROUNDED_BYTES:
        return False
    fd = open_file(path, os.O_RDWR)
    try:
        os.ftruncate(fd, min(_LEDGER_BYTES, os.fstat(fd).st_size))
    finally:
        os.close(fd)
    return True
