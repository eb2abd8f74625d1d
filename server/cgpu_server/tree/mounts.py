"""Where the control tree is mounted: a FUSE file system that one process serves.

It is mounted by root with mount(2), by users with fusermount3. Only whoever mounted it can look
into it, so nobody else waits for the server, however it fares.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import os
import socket
import subprocess
from typing import TYPE_CHECKING

from cgpu_env import CgpuError

if TYPE_CHECKING:
    from collections.abc import Iterator

KIND = "fuse.cgpu_km"
_SOURCE = "cgpu_km"
_DEVICE = "/dev/fuse"
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 0x2, 0x4, 0x8
_MNT_DETACH, _UMOUNT_NOFOLLOW = 0x2, 0x8
_PATIENCE = 10.0

_libc = ctypes.CDLL(None, use_errno=True)


def open_device() -> int:
    """A new connection to the kernel's FUSE, of a file system that is still to be mounted.

    Raises:
        OSError: there is none, or it is not for us.
    """
    return os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)


def mount(path: str, device: int | None = None) -> int:
    """Mount a new file system at ``path``, which takes the place of what a server left there.

    Args:
        path: a folder, or where one can be made.
        device: what the file system is to be served through; None: one of our own.

    Returns:
        The descriptor that it is served through.

    Raises:
        CgpuError: it cannot be mounted; one sentence says why.
    """
    try:
        _prepare(path)
        if os.geteuid() != 0:
            return _mount_as_user(path)
        opened = open_device() if device is None else device
        try:
            attach(opened, path)
        except BaseException:
            if device is None:
                os.close(opened)
            raise
    except OSError as error:
        raise CgpuError(f"{error.filename or path}: {error.strerror}") from None
    return opened


def attach(device: int, path: str) -> None:
    """Mount the file system of ``device`` at the folder ``path``, as root.

    Raises:
        OSError: it is not allowed.
    """
    uid, gid = os.geteuid(), os.getegid()
    data = f"fd={device},rootmode=40000,user_id={uid},group_id={gid}"
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    words = [os.fsencode(word) for word in (_SOURCE, path, KIND)]
    if _libc.mount(*words, flags, data.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)


def unmount(path: str) -> None:
    """Take away what is mounted of ours at ``path``; whoever still has a file of it open fails.

    It is never looked into: a server that has ended, or hangs, must not hold us up.
    """
    for _ in filter(path.__eq__, _mounted()):
        if os.geteuid() == 0:
            _libc.umount2(os.fsencode(path), _MNT_DETACH | _UMOUNT_NOFOLLOW)
        else:
            words = ["fusermount3", "-u", "-z", "-q", "--", path]
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(words, check=False, timeout=_PATIENCE)


def _mounted() -> Iterator[str]:
    """The places where a tree of ours is mounted."""
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            fields, _, source = line.partition(b" - ")
            if source.split(b" ")[0] == KIND.encode():  # a user's need not be text
                place = fields.split(b" ")[4]
                yield os.fsdecode(place.decode("unicode_escape").encode("latin-1"))


def _prepare(path: str) -> None:
    unmount(path)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o755)
    facts = os.lstat(path)
    if facts.st_uid != os.geteuid():  # in /tmp, anybody may have made it
        raise CgpuError(f"{path}: owned by user {facts.st_uid}, not by you")


def _mount_as_user(path: str) -> int:
    """By the privileged program of the fuse3 package, which sends the descriptor back."""
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
        _, sent, _, _ = ours.recvmsg(1, socket.CMSG_LEN(array.array("i", [0]).itemsize))
    for level, kind, data in sent:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            return int(array.array("i", data)[0])
    raise CgpuError(f"{path}: fusermount3 sent no descriptor")
