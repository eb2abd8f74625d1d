"""Mounts and unmounts the control tree, a FUSE file system.

Root mounts it with mount(2), other users with fusermount3. Only the user who mounted it can read
it, so a hung server makes nobody else wait.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess

from cgpu_env import CgpuError
from cgpu_native import system
from cgpu_node.shares.mountinfo import list_mounts

KIND = "fuse.cgpu_km"
_SOURCE = "cgpu_km"
_DEVICE = "/dev/fuse"
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 0x2, 0x4, 0x8
_MNT_DETACH, _UMOUNT_NOFOLLOW = 0x2, 0x8
_PATIENCE = 10.0


def open_device() -> int:
    """Open a connection to the kernel's FUSE, for a file system that is not mounted yet.

    Raises:
        OSError: there is no FUSE, or we may not use it.
    """
    return os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)


def mount_tree(path: str, device: int | None = None) -> int:
    """Mount a new file system at ``path``, after unmounting what an earlier server left there.

    Args:
        path: a folder, or a path where one can be made.
        device: the connection that will serve it; None: open one.

    Returns:
        The connection that serves it.

    Raises:
        CgpuError: it cannot be mounted; one sentence says why.
    """
    try:
        _prepare_folder(path)
        if os.geteuid() != 0:
            return _mount_as_user(path)
        opened = open_device() if device is None else device
        try:
            _attach_device(opened, path)
        except BaseException:
            if device is None:
                os.close(opened)
            raise
    except OSError as error:
        raise CgpuError(f"{error.filename or path}: {error.strerror}") from None
    return opened


def _attach_device(device: int, path: str) -> None:
    uid, gid = os.geteuid(), os.getegid()
    data = f"fd={device},rootmode=40000,user_id={uid},group_id={gid}"
    system.mount(_SOURCE, path, KIND, _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, data)


def unmount_tree(path: str) -> None:
    """Unmount our file systems at ``path``. Reads of their files that are still open fail.

    Nothing is read from these file systems, because their server may have ended, or hang.
    """
    for _ in filter(path.__eq__, _find_mounted()):
        if os.geteuid() == 0:
            with contextlib.suppress(OSError):
                system.unmount(path, _MNT_DETACH | _UMOUNT_NOFOLLOW)
        else:
            words = ["fusermount3", "-u", "-z", "-q", "--", path]
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(words, check=False, timeout=_PATIENCE)


def _find_mounted() -> list[str]:
    """Return the paths where a tree of ours is mounted. Other users' paths need not be text."""
    return [os.fsdecode(each.point) for each in list_mounts("/proc/self") if each.kind == KIND]


def _prepare_folder(path: str) -> None:
    unmount_tree(path)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o755)
    facts = os.lstat(path)
    if facts.st_uid != os.geteuid():  # in /tmp, anybody may have made it
        raise CgpuError(f"{path}: owned by user {facts.st_uid}, not by you")


def _mount_as_user(path: str) -> int:
    """Mount by fusermount3, the privileged program of fuse3, which sends the connection back."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    options = f"fsname={_SOURCE},subtype={_SOURCE},nosuid,nodev,noexec"
    with ours, theirs:
        ours.settimeout(_PATIENCE)
        done = subprocess.run(
            ["fusermount3", "-o", options, "--", path],  # noqa: S607 (as libfuse itself)
            env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())},
            pass_fds=[theirs.fileno()],
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=_PATIENCE,
        )
        if done.returncode != 0:
            raise CgpuError(f"{path}: {' '.join(done.stderr.split())}")
        _, sent, _, _ = socket.recv_fds(ours, 1, 1)
    if not sent:
        raise CgpuError(f"{path}: fusermount3 sent no descriptor")
    return sent[0]
