"""Misuses a container's file as no ordinary program does, until closed.

Run as a program, it is that process: ``hostile_files.py locks LEDGER COUNT`` claims every slot of a
ledger and makes locks on it; ``read-locks PATH COUNT`` makes locks for which it need not be able
to write; ``lease PATH...`` takes a lease on each file and gives none back; ``remount
NAME`` prints for each mount of a file of this name whether it can be written after a remount.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

SLOTS = 1024
MANY = 16_000  # locks: to ask for one process takes 160 us, for all of them a sixth of a second
_BEYOND = 1 << 20  # where no slot's byte is
_SET = 37  # F_OFD_SETLK, which the module fcntl does not know everywhere
_BIND, _REMOUNT = 0x1000, 0x20
_SLOTS_AT, _SLOT_SIZE, _BOUND_AT = 36992, 320, 12  # as ledger_file.c asserts


class Hostile:
    """Run ``hostile_files.py`` with these arguments; returns when it has done its work."""

    def __init__(self, *arguments: str | Path) -> None:
        words = [sys.executable, __file__, *map(str, arguments)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self._process.pid
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"done\n"

    def holds_leases(self) -> bool:
        """Whether it still has a lease: the kernel breaks it 45 s after another process came."""
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
        return any(line.split()[1] == "LEASE" and str(self.pid) in line.split() for line in lines)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=20)


def _make_locks(path: str, count: int) -> None:
    fd = os.open(path, os.O_RDWR)
    for slot in range(SLOTS):
        head = struct.pack("IIII48xQ", 1, 1, 100 + slot, 0, 1)
        os.pwrite(fd, head, _SLOTS_AT + slot * _SLOT_SIZE)
    os.pwrite(fd, struct.pack("I", SLOTS), _BOUND_AT)
    _lock(fd, fcntl.F_WRLCK, count)


def _lock(fd: int, kind: int, count: int) -> None:
    for number in range(count):
        lock = struct.pack("hhqqi4x", kind, os.SEEK_SET, _BEYOND + 2 * number, 1, 0)
        fcntl.fcntl(fd, _SET, lock)


def _take_lease(path: str) -> None:
    fcntl.fcntl(os.open(path, os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_WRLCK)


def _remount(name: str) -> None:
    libc = ctypes.CDLL(None)
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words = line.split()
        path, kind = words[4], words[words.index("-") + 1]
        if not path.endswith(f"/{name}"):
            continue
        libc.mount(b"none", path.encode(), None, _REMOUNT | _BIND, None)
        if kind == "overlay":  # a file system of the machine stays as it is
            libc.mount(b"none", path.encode(), None, _REMOUNT, None)
        sys.stdout.write(f"{path} {kind} {_written(path)}\n")


def _written(path: str) -> str:
    """How opening it for writing ends; nothing is written."""
    try:
        os.close(os.open(path, os.O_WRONLY))
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "writable"


def main() -> None:
    """Do it, say so, and wait."""
    what, *arguments = sys.argv[1:]
    if what == "remount":
        _remount(*arguments)
        return
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # by which the kernel asks for a lease
    if what == "locks":
        _make_locks(arguments[0], int(arguments[1]))
    elif what == "read-locks":
        _lock(os.open(arguments[0], os.O_RDONLY), fcntl.F_RDLCK, int(arguments[1]))
    else:
        for path in arguments:
            _take_lease(path)
    sys.stdout.write("done\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
