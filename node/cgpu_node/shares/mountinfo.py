"""The mounts that a process sees, from proc_pid_mountinfo(5)."""

from __future__ import annotations

import os
import time

from cgpu_env.errors import refuse_exhausted
from cgpu_env.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


class Origin(NamedTuple):
    """The identity of a mounted file, whatever path leads to it.

    Attributes:
        device: its file system's device, ``major:minor`` as in mountinfo.
        path: its path within that file system.
    """

    device: bytes
    path: bytes


class MountInfo(NamedTuple):
    """One line: the mount's number, what is mounted, where, and the rest of the line."""

    number: bytes
    origin: Origin
    point: bytes
    rest: bytes

    @property
    def kind(self) -> str:
        """Return the type of the mounted file system."""
        return os.fsdecode(self.rest.partition(b" - ")[2].split(b" ")[0])

    @property
    def options(self) -> list[bytes]:
        """Return the options of the mounted file system."""
        return self.rest.rstrip().rpartition(b" ")[2].split(b",")


def read_mounts(folder: str, until: float, ending: bytes = b"") -> Iterator[MountInfo | None]:
    """Yield the mounts of a process.

    Anybody can stack mounts, and for each line the kernel walks down the stack. So reading ends
    when the thread's time is ``until``; the last item is then None.

    Args:
        folder: the process's folder in /proc.
        until: the end, by ``time.thread_time()``.
        ending: how the paths of the wanted files end; others are left out.
    """
    try:
        with open(f"{folder}/mountinfo", "rb") as file:  # whose paths need not be text
            for line in file:
                if time.thread_time() > until:
                    yield None
                    return
                number, _, device, root, point, rest = line.split(b" ", 5)
                if root.endswith(ending):
                    origin = Origin(device, _unescape_path(root))
                    yield MountInfo(number, origin, _unescape_path(point), rest)
    except OSError as error:  # it ended meanwhile, or belongs to another user
        refuse_exhausted(error, "who lives")


def list_mounts(folder: str, ending: bytes = b"") -> list[MountInfo]:
    """Return all that ``read_mounts`` yields, however long that takes."""
    return [each for each in read_mounts(folder, float("inf"), ending) if each is not None]


def origin_of(directory: str) -> Origin | None:
    """Return a directory's identity in its file system; None if it is gone.

    Raises:
        CgpuError: that cannot be seen, because no more files can be opened.
    """
    try:
        fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        refuse_exhausted(error, "who lives")
        return None
    try:
        with open(f"/proc/self/fdinfo/{fd}", "rb") as file:
            number = next(line.split()[1] for line in file if line.startswith(b"mnt_id:"))
        path = os.readlink(os.fsencode(f"/proc/self/fd/{fd}"))
    except OSError as error:
        refuse_exhausted(error, "who lives")
        return None
    finally:
        os.close(fd)
    for mount in read_mounts("/proc/self", float("inf")):
        if mount is not None and mount.number == number:
            below = os.path.relpath(path, mount.point)
            whole = os.path.normpath(os.path.join(mount.origin.path, below))
            return Origin(mount.origin.device, whole)
    return None


def _unescape_path(text: bytes) -> bytes:
    first, *parts = text.split(b"\\")  # no import of re, which takes 5 ms
    return first + b"".join(bytes([int(part[:3], 8)]) + part[3:] for part in parts)
