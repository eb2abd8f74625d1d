"""Namespaces, bind mounts and signals, by the C library's own functions."""

from __future__ import annotations

import ctypes
import os

MS_RDONLY, MS_NOSUID, MS_NODEV = 0x1, 0x2, 0x4
MS_REMOUNT, MS_BIND, MS_REC, MS_SLAVE = 0x20, 0x1000, 0x4000, 0x80000
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
# What a user's namespace may not drop from a mount: (as statvfs has it, as mount takes it).
_LOCKED = ((0x2, 0x2), (0x4, 0x4), (0x8, 0x8), (0x400, 0x400), (0x800, 0x800), (0x1000, 0x200000))

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """``mount(2)``.

    Raises:
        OSError: it is not allowed or not possible.
    """
    arguments = [os.fsencode(text) for text in (source, target, kind)]
    _check(_libc.mount(*arguments, ctypes.c_ulong(flags), data.encode()), target)


def bind(source: str, target: str) -> None:
    """Let ``target`` be ``source``, as it is (a read-only source stays read-only)."""
    mount(source, target, "", MS_BIND)


def make_read_only(target: str) -> None:
    """Let nobody write through the mount at ``target``."""
    present = os.statvfs(target).f_flag
    locked = sum(flag for bit, flag in _LOCKED if present & bit)
    mount("", target, "", MS_REMOUNT | MS_BIND | MS_RDONLY | locked)


def unshare() -> None:
    """Enter a mount namespace of our own; without root, through a user namespace.

    In a user namespace we stay the user and group that we are.

    Raises:
        OSError: neither is allowed here.
    """
    uid, gid = os.geteuid(), os.getegid()
    if uid != 0 or _libc.unshare(_CLONE_NEWNS) != 0:
        _check(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS), "user namespace")
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
    # What the host mounts or unmounts later is seen here; nothing of ours is seen there.
    mount("", "/", "", MS_REC | MS_SLAVE)


def default_signal(number: int) -> None:
    """Let signal ``number`` do what it does by default (``signal`` takes 1.5 ms to import)."""
    _libc.signal(number, None)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
