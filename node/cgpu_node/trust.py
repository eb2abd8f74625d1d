"""Checks whether a file of the host can be trusted, for example to be mounted into a container.

A user who can change such a file can change what every container gets. So the file and every
directory above it must belong to root (or to us, if we are not root), and no other user may be able
to write there. In a user namespace, the users outside it count as root.
"""

from __future__ import annotations

import os
import stat

from cgpu_env.errors import CgpuError

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_WHOLE = [b"0", b"0", b"4294967295"]  # the map of the host's own user namespace


def check_source(path: str, *, shared: bool = False, known: set[str] | None = None) -> None:
    """Refuse the file or directory at ``path`` if others could change it.

    Args:
        path: absolute, without links in it.
        shared: whether anybody may write to the file itself (a device, a ledger).
        known: directories that were found safe a moment ago, and are not checked again; more are
            added.

    Raises:
        CgpuError: it is missing, is a link, or others could change it.
    """
    owners = (0, os.geteuid())
    allowed = "expected it and its directories to belong to root and no one else to write there"
    part, known = path, set() if known is None else known
    while part not in known:
        try:
            facts = os.lstat(part)
        except OSError as error:
            raise CgpuError(f"{path}: {error.strerror}") from None
        if stat.S_ISLNK(facts.st_mode):
            raise CgpuError(f"{path}: {part} is a symbolic link")
        own = part == path
        allowed_there = shared if own else bool(facts.st_mode & stat.S_ISVTX)
        writable = facts.st_mode & _OTHERS_WRITE and not allowed_there
        if (facts.st_uid not in owners and not _is_outside(facts.st_uid)) or writable:
            what = "it" if own else part
            raise CgpuError(f"{path}: others could change {what}: {allowed}")
        if not own:
            known.add(part)
        if part == "/":
            return
        part = os.path.dirname(part)


def _is_outside(uid: int) -> bool:
    """Whether the owner is root of the host, as far as this process can see.

    In a user namespace, all users from outside have the same id, and so the host's libraries belong
    to that id. The user who made the namespace has no more rights on the host than before.
    """
    with open("/proc/self/uid_map", "rb") as file:
        if file.read().split() == _WHOLE:
            return False
    with open("/proc/sys/kernel/overflowuid", "rb") as file:
        return uid == int(file.read())
