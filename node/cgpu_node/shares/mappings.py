"""The ledgers that a process has mapped, from proc_pid_maps(5)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cgpu_node.shares.mountinfo import origin_of

_NAME = b"/ledger"


class LedgerFile(NamedTuple):
    """The identity of a ledger's file. Other file systems may have the same inode number.

    Attributes:
        device: its file system's device, ``major:minor`` as in mountinfo; for some file systems,
            stat names another one.
        inode: its number within that file system.
    """

    device: bytes
    inode: int


def ledgers_of(directories: Iterable[str]) -> dict[str, LedgerFile]:
    """Return the ledgers by container's directory, without those of containers that are ending."""
    devices: dict[str, bytes | None] = {}
    found = {}
    for directory in directories:
        folder = os.path.dirname(directory)
        if folder not in devices:
            origin = origin_of(folder)
            devices[folder] = origin and origin.device
        device = devices[folder]
        try:
            inode = os.stat(f"{directory}/ledger").st_ino
        except OSError:
            continue
        if device is not None:
            found[directory] = LedgerFile(device, inode)
    return found


def mapped_ledgers(folder: str, until: float) -> Iterator[LedgerFile | None]:
    """Yield the files named ``ledger`` that a process has mapped.

    By default a process can have 65,530 mappings, each with a path of 4 KB: to read them takes 2 s.
    So reading ends when the thread's time is ``until``; the last item is then None.

    Args:
        folder: the process's folder in /proc (``liveness.folder_of``).
        until: the end, by ``time.thread_time()``.
    """
    try:
        with open(f"{folder}/maps", "rb") as file:  # whose paths need not be text
            for line in file:
                if time.thread_time() > until:
                    yield None
                    return
                if _NAME not in line:  # true of nearly all lines
                    continue
                _, _, _, device, inode, *path = line.split(maxsplit=5)
                if b"".join(path).rstrip().removesuffix(b" (deleted)").endswith(_NAME):
                    major, minor = (int(part, 16) for part in device.split(b":"))
                    yield LedgerFile(b"%d:%d" % (major, minor), int(inode))
    except OSError:  # it ended meanwhile, or is another user's
        return
