"""What a user does to hold up others: ``hostile_users.py KIND ...``, as a program, until killed.

It prints a line when it has begun. ``connections SOCKET``: never stop connecting to root's server
and asking it. ``mounts FOLDER COUNT LIBRARY`` and ``mappings FOLDER COUNT LIBRARY``: stack so many
mounts on a folder, or map a file with a long path so often, and hold memory of the GPU past cgpu.
``growth LEDGER``: make a ledger large again and again.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from pathlib import Path

ASKED = b'{"request": "usage"}\n'
MIB = 1 << 20
_OPEN_TREE, _MOVE_MOUNT = 428, 429  # system calls, on every processor
_CLONE, _FROM_EMPTY, _TO_EMPTY, _EMPTY_PATH = 1, 4, 0x40, 0x1000
_NEW_USER, _NEW_MOUNTS, _RECURSIVE, _PRIVATE = 0x10000000, 0x20000, 0x4000, 0x40000
_SHARED, _READ, _NAME_LENGTH, _DEPTH = 1, 1, 200, 18


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    sizes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mmap.argtypes = sizes
    return libc


def _begin(number: int = 0) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def connect(path: str) -> None:
    """Keep the queue of a socket full, and ask each second time."""
    ends: list[socket.socket] = []
    for turn in range(1 << 30):
        end = socket.socket(socket.AF_UNIX)
        end.setblocking(False)  # noqa: FBT003 (the name of a method of Python's)
        ends.append(end)
        if end.connect_ex(path) == 0 and turn % 2:
            end.send(ASKED)
        if len(ends) > 100:
            ends.pop(0).close()
        if turn == 200:
            _begin()


def stack(folder: str, most: int) -> int:
    """Stack mounts on a folder, in namespaces of our own; returns how many the kernel allowed."""
    libc = _libc()
    user = os.getuid()
    spaces = _NEW_MOUNTS | (_NEW_USER if user else 0)
    assert libc.unshare(spaces) == 0, os.strerror(ctypes.get_errno())
    if user:
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
    libc.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None)
    assert libc.mount(b"none", folder.encode(), b"tmpfs", 0, None) == 0
    top = os.open(folder, os.O_PATH)
    for number in range(most):
        # by descriptors: a path is followed through all the mounts that are there already
        more = libc.syscall(_OPEN_TREE, top, b"", _CLONE | _EMPTY_PATH)
        if more < 0 or libc.syscall(_MOVE_MOUNT, more, b"", top, b"", _FROM_EMPTY | _TO_EMPTY):
            return number
        os.close(top)
        top = more
    return most


def map_often(folder: str, most: int) -> int:
    """Map a file named ``ledger``, with a path of nearly 4 KB; returns how often."""
    os.chdir(folder)
    for _ in range(_DEPTH):
        name = "x" * _NAME_LENGTH
        Path(name).mkdir(exist_ok=True)
        os.chdir(name)
    libc, fd = _libc(), os.open("ledger", os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(fd, 1 << 13)
    for number in range(most):
        # different rights, so that the kernel does not join neighbours
        if (
            libc.mmap(None, 4096, _READ | number % 2 * 2, _SHARED, fd, 0)
            == ctypes.c_void_p(-1).value
        ):
            return number
    return most


def hold(library: str, mib: int) -> None:
    """Hold memory of the GPU, without cgpu, so that the driver names us."""
    cuda, context, pointer = ctypes.CDLL(library), ctypes.c_void_p(), ctypes.c_uint64()
    for status in (
        cuda.cuInit(0),
        cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0),
        cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(mib * MIB)),
    ):
        assert status == 0, f"error {status}"


def grow(path: str) -> None:
    """Make a file large whenever it has been cut."""
    fd = os.open(path, os.O_RDWR)
    _begin()
    while True:
        os.ftruncate(fd, 1 << 40)


def main() -> None:
    """Do what the first argument says."""
    what, *words = sys.argv[1:]
    if what == "connections":
        connect(words[0])
    elif what == "growth":
        grow(words[0])
    else:
        folder, most, library = words
        count = {"mounts": stack, "mappings": map_often}[what](folder, int(most))
        hold(library, 10)
        _begin(count)
        signal.pause()


if __name__ == "__main__":
    main()
