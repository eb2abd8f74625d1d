"""Whether a container or session is still alive, found out without any message from it."""

from __future__ import annotations

import os
import time

import cgpu_native
from cgpu_node.exhausted import refuse_exhausted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from cgpu_node.shares.record import Record

# Fields of /proc/PID/stat, counted behind the program's name.
_STATE, _THREADS, _START_TIME = 0, 17, 19

MOUNTS_CPU_S = 0.5  # of the processor, for reading mounts; 25,000 take a tenth of it


def start_time(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None if it does not live.

    One whose first thread has ended lives on in the others.

    Raises:
        CgpuError: it cannot be seen, because no more files can be opened.
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
    """The folder in /proc that shows what a process has: a thread's, if the first one has ended.

    A process whose first thread has ended still has its memory, but its own folder does not show
    it.
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
    """Whether the owner lives or, of a session, a process that it left behind.

    Raises:
        CgpuError: that cannot be seen, because no more files can be opened.
    """
    owner = record.owner
    if owner.pid > 0 and start_time(owner.pid) == owner.start_time:
        return True
    if owner.runtime_dir is not None and _is_there(owner.runtime_dir):
        return True
    directory = record.directory
    return record.kind == "session" and (_is_used(directory) or is_inhabited(directory))


def _is_used(directory: str) -> bool:
    """Whether a living process holds memory in the ledger."""
    try:
        with cgpu_native.Ledger.observe(f"{directory}/ledger") as ledger:
            return bool(ledger.processes())
    except OSError as error:
        _refuse_exhausted(error)
        return False
    except cgpu_native.NativeError:
        return False


def is_inhabited(directory: str) -> bool:
    """Whether the limits in ``directory`` are mounted in a namespace that a process lives in.

    Namespaces have no lasting name, and their numbers are reused: so the mounts are compared. They
    are read and not looked up, because the session decides where a path leads in there. If there
    are too many to read, the limits may be among them.
    """
    until = time.thread_time() + MOUNTS_CPU_S
    path = os.fsencode(f"/{os.path.basename(directory)}/limits")
    seen = {None, _link("/proc/self/ns/mnt")}
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        folder = folder_of(int(pid))
        namespace = _link(f"{folder}/ns/mnt")
        if namespace not in seen:
            seen.add(namespace)
            if _is_mounted(folder, path, until):
                return True
    return False


def mounts(folder: str, until: float) -> Iterator[list[bytes] | None]:
    """What proc_pid_mountinfo(5) says of each mount of a process: ID, parent, device, root, rest.

    Anybody can stack mounts, and the kernel walks down the stack for each line. So reading ends
    when the thread's time is ``until``; the last item is then None.
    """
    try:
        with open(f"{folder}/mountinfo", "rb") as file:  # whose paths need not be text
            for line in file:
                if time.thread_time() > until:
                    yield None
                    return
                yield line.split(b" ", 4)
    except OSError as error:  # it ended meanwhile, or belongs to another user
        _refuse_exhausted(error)


def _is_mounted(folder: str, path: bytes, until: float) -> bool:
    """Whether a process may have a file mounted whose path in its file system ends so."""
    return any(mount is None or mount[3].endswith(path) for mount in mounts(folder, until))


def _link(path: str) -> str | None:
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
