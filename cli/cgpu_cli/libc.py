"""Namespaces, bind mounts and signals, by the C library's own functions."""

from __future__ import annotations

import ctypes
import os

MS_RDONLY, MS_NOSUID, MS_NODEV = 0x1, 0x2, 0x4
MS_REMOUNT, MS_BIND, MS_REC, MS_SLAVE = 0x20, 0x1000, 0x4000, 0x80000
_PR_SET_CHILD_SUBREAPER = 36
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
# What a user's namespace may not drop from a mount: (as statvfs has it, as mount takes it).
_LOCKED = ((0x2, 0x2), (0x4, 0x4), (0x8, 0x8), (0x400, 0x400), (0x800, 0x800), (0x1000, 0x200000))

_SIGINT, _SIGPIPE, _SIGXFSZ = 2, 13, 25
_SIG_DFL, _SIG_IGN = ctypes.c_void_p(0), 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.signal.restype = ctypes.c_void_p


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

    Raises:
        OSError: neither is allowed here.
    """
    if os.geteuid() != 0 or _libc.unshare(_CLONE_NEWNS) != 0:
        _unshare_user()
    # What the host mounts or unmounts later is seen here; nothing of ours is seen there.
    mount("", "/", "", MS_REC | MS_SLAVE)


def lock_mounts() -> None:
    """Let a root without the rights of one (as in many containers) not undo the mounts.

    Whoever made a user namespace may unmount in it, but not what came from the one outside.

    Raises:
        OSError: it is not allowed.
    """
    if os.geteuid() == 0 and not _is_initial_root():
        _unshare_user()


def _is_initial_root() -> bool:
    """Whether we got along without a user namespace of our own, which maps one id only."""
    with open("/proc/self/uid_map") as file:
        return file.read().split()[2] != "1"


def _unshare_user() -> None:
    """Enter a user namespace, with a mount namespace, as the user and group that we are."""
    uid, gid = os.geteuid(), os.getegid()
    _check(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS), "user namespace")
    for file, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1")):
        _write(f"/proc/self/{file}", text)
    _write("/proc/self/gid_map", f"{gid} {gid} 1")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def adopt_orphans() -> None:
    """Become the parent of processes whose parent, a descendant of ours, has ended."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def restore_signals() -> None:
    """Undo what the interpreter did to signals when it started.

    It ignores two and turns an interrupt into an exception; one that was ignored before stays so.
    (Python's own ``signal`` takes 1.5 ms to import.)
    """
    for number in (_SIGPIPE, _SIGXFSZ):
        _libc.signal(number, _SIG_DFL)
    if _libc.signal(_SIGINT, _SIG_DFL) == _SIG_IGN:
        _libc.signal(_SIGINT, ctypes.c_void_p(_SIG_IGN))
