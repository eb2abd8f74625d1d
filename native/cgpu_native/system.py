"""System calls that ``os`` lacks (``system/system.h``). Importing ``ctypes`` takes 2 ms."""

from __future__ import annotations

import os

from cgpu_native._native import lib
from cgpu_native.errors import check_status


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """Call ``mount(2)``.

    Raises:
        OSError: it is not allowed or not possible.
    """
    words = [os.fsencode(word) for word in (source, target, kind)]
    check_status(lib.cgpu_system_mount(*words, flags, data.encode()), target)


def unmount(target: str, flags: int) -> None:
    """Call ``umount2(2)``.

    Raises:
        OSError: it is not allowed or not possible.
    """
    check_status(lib.cgpu_system_unmount(os.fsencode(target), flags), target)


def unshare(flags: int, purpose: str) -> None:
    """Call ``unshare(2)``; ``purpose`` is named in errors.

    Raises:
        OSError: it is not allowed.
    """
    check_status(lib.cgpu_system_unshare(flags), purpose)


def adopt_orphans() -> None:
    """Become the parent of processes whose parent, a descendant of this process, has ended.

    Raises:
        OSError: the kernel cannot do that.
    """
    check_status(lib.cgpu_system_adopt_orphans(), "orphans")
