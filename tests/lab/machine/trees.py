"""A view of the machine without the control trees of other tests, which may kill their servers."""

from __future__ import annotations

import ctypes
import os

from cgpu_server.tree import mounts

_NEWNS, _PRIVATE = 0x20000, 0x4000 | 0x40000  # CLONE_NEWNS; MS_REC | MS_PRIVATE


def leave_trees() -> None:
    """Take this process, which is root's, into a mount namespace without control trees."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEWNS) or libc.mount(b"none", b"/", None, ctypes.c_ulong(_PRIVATE), None):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    for point in [*mounts._find_mounted()]:  # noqa: SLF001 (those of all servers)
        mounts.unmount_tree(point)
