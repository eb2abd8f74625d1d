"""Mount namespaces and bind mounts for a program under ``cgpu-run``."""

from __future__ import annotations

import os

from cgpu_native.system import mount, unshare

MS_RDONLY, MS_NOSUID, MS_NODEV = 0x1, 0x2, 0x4
MS_REMOUNT, MS_BIND, MS_REC, MS_SLAVE = 0x20, 0x1000, 0x4000, 0x80000
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
# Flags that a user's namespace may not remove from a mount, as pairs: (for statvfs, for mount).
_LOCKED = ((0x2, 0x2), (0x4, 0x4), (0x8, 0x8), (0x400, 0x400), (0x800, 0x800), (0x1000, 0x200000))


def bind_mount(source: str, target: str) -> None:
    """Mount ``source`` at ``target`` with the flags of ``source``, which may be read-only."""
    mount(source, target, "", MS_BIND)


def make_read_only(target: str) -> None:
    """Make the mount at ``target`` read-only."""
    present = os.statvfs(target).f_flag
    locked = sum(flag for bit, flag in _LOCKED if present & bit)
    mount("", target, "", MS_REMOUNT | MS_BIND | MS_RDONLY | locked)


def enter_own() -> None:
    """Enter a mount namespace of our own; if we are not root, through a user namespace.

    Raises:
        OSError: neither is allowed here.
    """
    if not _enter_as_root():
        _enter_as_user()
    # Mounts that the host makes or removes later appear here; ours do not appear there.
    mount("", "/", "", MS_REC | MS_SLAVE)


def _enter_as_root() -> bool:
    if os.geteuid() != 0:
        return False
    try:
        unshare(_CLONE_NEWNS, "mount namespace")
    except OSError:  # root without CAP_SYS_ADMIN, as in many containers
        return False
    return True


def lock_mounts() -> None:
    """Keep a root without a root's rights (as in many containers) from undoing the mounts.

    The user who made a user namespace may unmount in it, but not what was mounted outside before.

    Raises:
        OSError: it is not allowed.
    """
    if os.geteuid() == 0 and not _is_initial_root():
        _enter_as_user()


def _is_initial_root() -> bool:
    """Whether we need no user namespace of our own, in which only one id is mapped."""
    with open("/proc/self/uid_map") as file:
        return file.read().split()[2] != "1"


def _enter_as_user() -> None:
    """Enter a user namespace, with a mount namespace, and keep our own user and group ids."""
    uid, gid = os.geteuid(), os.getegid()
    unshare(_CLONE_NEWUSER | _CLONE_NEWNS, "user namespace")
    for file, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1")):
        _write_file(f"/proc/self/{file}", text)
    _write_file("/proc/self/gid_map", f"{gid} {gid} 1")


def _write_file(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
