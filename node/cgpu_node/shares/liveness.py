"""Finds out whether a container, session or claim is alive, without any message from it."""

from __future__ import annotations

import os
import time
from fcntl import ioctl
from sys import byteorder

import cgpu_native
from cgpu_env.errors import refuse_exhausted
from cgpu_node.shares.mountinfo import origin_of, read_mounts
from cgpu_node.shares.record import OUTLIVING, guest_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from cgpu_node.shares.mountinfo import MountInfo, Origin
    from cgpu_node.shares.record import Record

# Fields of /proc/PID/stat, counted from behind the program's name.
_STATE, _THREADS, _START_TIME = 0, 17, 19

# Requests of ioctl_ns(2).
_GET_USER_SPACE, _GET_PARENT, _GET_MAKER = 0xB701, 0xB702, 0xB704
_OURS = -1  # no user made it: it is the one that we are in

# The most processor time for finding all ended sessions. 10,000 ordinary mounts take a fifth of it;
# a ledger in which all slots are taken takes 12 ms.
MOUNTS_CPU_S = 0.1
LEDGERS_CPU_S = 0.02


def start_time(pid: int) -> int | None:
    """Return the process's start in clock ticks since boot; None if it does not live.

    A process whose first thread has ended still lives in its other threads.

    Raises:
        CgpuError: that cannot be seen, because no more files can be opened.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError as error:
        _refuse_exhausted(error)
        return None
    gone = fields[_STATE] in (b"Z", b"X") and int(fields[_THREADS]) <= 1
    return None if gone else int(fields[_START_TIME])


def folder_of(pid: int) -> str:
    """Return the folder in /proc that shows what a process has.

    If a process's first thread has ended, the process still has its memory, but its own folder does
    not show it. Then this is another thread's folder.
    """
    own = f"/proc/{pid}"
    if _has_memory(own):
        return own
    try:
        tasks = [f"{own}/task/{tid}" for tid in os.listdir(f"{own}/task")]
    except OSError as error:  # it is gone
        _refuse_exhausted(error)
        return own
    return next((task for task in tasks if _has_memory(task)), own)


def _has_memory(folder: str) -> bool:
    try:
        with open(f"{folder}/statm", "rb") as file:
            return not file.read().startswith(b"0 ")
    except OSError as error:
        _refuse_exhausted(error)
        return False


def is_alive(record: Record) -> bool:
    """Whether the owner lives, or, for a session or claim, a process that the owner left behind.

    Raises:
        CgpuError: that cannot be seen, because no more files can be opened.
    """
    return is_owned(record) or not find_ended([record])


def find_ended(records: Iterable[Record]) -> set[str]:
    """Return the directories of the ``records`` that have ended, in one pass over all processes.

    If processes have too many mounts to read, or a ledger has too many locks to ask about, a
    session or claim counts as alive.

    Raises:
        CgpuError: that cannot be seen, because no more files can be opened.
    """
    ownerless = [record for record in records if not is_owned(record)]
    sessions = [record.directory for record in ownerless if record.kind in OUTLIVING]
    dead = {record.directory for record in ownerless} - find_inhabited(sessions)
    # each pass begins with another session, so that all of them get time
    first = time.monotonic_ns() % max(len(sessions), 1)
    until = time.thread_time() + LEDGERS_CPU_S
    for directory in (*sessions[first:], *sessions[:first]):
        if directory in dead and _may_be_used(directory, until):
            dead.discard(directory)
    return dead


def is_owned(record: Record) -> bool:
    """Return whether the owner lives.

    Raises:
        CgpuError: that cannot be seen, because no more files can be opened.
    """
    owner = record.owner
    if owner.pid > 0 and start_time(owner.pid) == owner.start_time:
        return True
    return owner.runtime_dir is not None and _is_there(owner.runtime_dir)


def _may_be_used(directory: str, until: float) -> bool:
    """Whether a living process may hold memory in the ledger."""
    if time.thread_time() > until:
        return True
    try:
        with cgpu_native.Ledger.observe(f"{directory}/ledger") as ledger:
            return bool(ledger.list_processes())
    except OSError as error:
        _refuse_exhausted(error)
        return False
    except cgpu_native.NativeError:
        return False


def find_inhabited(directories: Collection[str]) -> set[str]:
    """Return those ``directories`` whose limits are mounted in a namespace that has a process.

    Namespaces have no lasting name, and their numbers are reused, so the mounts are compared. They
    are read from the kernel's list: in such a namespace, the session decides where a path leads.
    Each user's namespaces get the same time. If a user has too many mounts to read, the limits of
    that user's sessions count as mounted. If our own user namespace has too many, the limits of all
    sessions do.
    """
    wanted = _limits_of(directories)
    found = {directory for directory in {*directories} - {*wanted.values()} if _is_there(directory)}
    until = time.thread_time() + MOUNTS_CPU_S
    homes = _list_namespaces() if wanted else {}
    for number, user in enumerate(sorted(homes)):
        now = time.thread_time()
        # ours come first, and may use all of the time
        most = until if user == _OURS else now + (until - now) / (len(homes) - number)
        for mount in _read_limits_mounts(homes[user], most):
            if mount is None:
                found.update(each for each in wanted.values() if _may_be_of(each, user))
            elif mount.origin in wanted:
                found.add(wanted[mount.origin])
    return found


def _read_limits_mounts(folders: Iterable[str], until: float) -> Iterator[MountInfo | None]:
    """Yield mounts of limits in these processes' namespaces, and None when the time is up."""
    for folder in folders:
        for mount in read_mounts(folder, until, b"/limits"):
            yield mount
            if mount is None:
                return


def _list_namespaces() -> dict[int, list[str]]:
    """Return a folder in /proc for each mount namespace but ours, by the user who made it."""
    found: dict[int, list[str]] = {}
    seen = {None, _read_link("/proc/self/ns/mnt")}
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        folder = folder_of(int(pid))
        namespace = _read_link(f"{folder}/ns/mnt")
        if namespace not in seen:
            seen.add(namespace)
            found.setdefault(_maker_of(folder), []).append(folder)
    return found


def _maker_of(folder: str) -> int:
    """Return who made the outermost user namespace above a process's mounts, other than ours.

    Only root of that namespace can mount there. Only its maker or the host's root can become that.
    """
    fds: list[int] = []
    try:
        fds.append(os.open(f"{folder}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC))
        fds.append(ioctl(fds[-1], _GET_USER_SPACE))
        while True:
            fds.append(ioctl(fds[-1], _GET_PARENT))
    except OSError as error:  # the last one is ours, or the process is gone
        _refuse_exhausted(error)
        _, *spaces = fds or (0,)
        return _read_maker(spaces[-2]) if len(spaces) > 1 else _OURS
    finally:
        for fd in fds:
            os.close(fd)


def _read_maker(user_space: int) -> int:
    try:
        return int.from_bytes(ioctl(user_space, _GET_MAKER, bytes(4)), byteorder)
    except OSError:  # Linux before 4.11 does not say
        return _OURS


def _may_be_of(directory: str, user: int) -> bool:
    """Whether a process in a namespace of ``user`` may belong to the session."""
    return user == _OURS or guest_of(directory) in {user, None}


def _limits_of(directories: Iterable[str]) -> dict[Origin, str]:
    """Return the ``directories`` by the identity of the limits in each."""
    found = {}
    for directory in directories:
        folder = origin_of(directory)
        if folder is not None:  # else it is gone
            found[folder._replace(path=folder.path + b"/limits")] = directory
    return found


def _read_link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError as error:
        _refuse_exhausted(error)
        return None


def _is_there(path: str) -> bool:
    try:
        os.stat(path)
    except OSError as error:
        _refuse_exhausted(error)
        return False
    return True


def _refuse_exhausted(error: OSError) -> None:
    refuse_exhausted(error, "who lives")
