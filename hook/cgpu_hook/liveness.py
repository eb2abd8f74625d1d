"""Whether a container or session still lives; nobody has to tell us that it died."""

from __future__ import annotations

import os

import cgpu_native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cgpu_hook.record import Record

_STATE, _START_TIME = 0, 19  # fields of /proc/PID/stat, counted behind the program's name


def start_time(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None where it does not live."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[_STATE] in (b"Z", b"X") else int(fields[_START_TIME])


def is_alive(record: Record) -> bool:
    """Whether the owner lives or, of a session, a process that it left behind."""
    owner = record.owner
    if owner.pid > 0 and start_time(owner.pid) == owner.start_time:
        return True
    if owner.runtime_dir is not None and os.path.isdir(owner.runtime_dir):
        return True
    directory = record.directory
    return record.kind == "session" and (_is_used(directory) or _is_inhabited(directory))


def _is_used(directory: str) -> bool:
    """Whether a living process holds memory in the ledger."""
    try:
        with cgpu_native.Ledger.observe(f"{directory}/ledger") as ledger:
            return bool(ledger.processes())
    except (OSError, cgpu_native.NativeError):
        return False


def _is_inhabited(directory: str) -> bool:
    """Whether a process sees the limits of this session at their place in a session's own mounts.

    Namespaces have no lasting name, their numbers are used again: so the file itself is compared.
    """
    own = _link("/proc/self/ns/mnt")
    try:
        limits = os.stat(f"{directory}/limits")
    except OSError:
        return False
    place = os.path.dirname(os.path.dirname(directory)) + "/limits"
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        if _link(f"/proc/{pid}/ns/mnt") in (None, own):
            continue
        try:
            seen = os.stat(f"/proc/{pid}/root{place}")
        except OSError:
            continue
        if (seen.st_dev, seen.st_ino) == (limits.st_dev, limits.st_ino):
            return True
    return False


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None
