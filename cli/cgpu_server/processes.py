"""Which processes of the host hold a container's memory.

A ledger knows them by the ids that they have in namespaces of their own, as they say themselves. A
process of the host is one of them if it goes by that id and has the container's ledger mapped.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import cgpu_native

if TYPE_CHECKING:
    from cgpu_hook.record import Record

UNKNOWN = 0  # of a process that has just ended, or hides
_MAPPED = "/ledger"


class Holding(NamedTuple):
    """A process of the host and the bytes that it holds on one GPU."""

    pid: int
    used_bytes: int


def holdings(record: Record, place: int) -> list[Holding]:
    """Who holds memory on the container's GPU at ``place``; nobody where the ledger is ruined."""
    path = f"{record.directory}/ledger"
    try:
        inode = os.stat(path).st_ino
        with cgpu_native.Ledger.observe(path) as ledger:
            found = ledger.processes(place)
    except (OSError, cgpu_native.NativeError):  # it ends just now
        return []
    hosts = _hosts({process.pid for process in found}, inode) if found else {}
    return [Holding(_take(hosts, process.pid), process.used_bytes) for process in found]


def _take(hosts: dict[int, list[int]], pid: int) -> int:
    """One of those that go by this id; processes in namespaces of the same container may share."""
    same = hosts.get(pid)
    return same.pop(0) if same else UNKNOWN


def _hosts(pids: set[int], inode: int) -> dict[int, list[int]]:
    """The processes of the host with this ledger, by the id that they know themselves by."""
    found: dict[int, list[int]] = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        own = _own_pid(name)
        if own in pids and _has_mapped(name, inode):
            found.setdefault(own, []).append(int(name))
    return found


def _own_pid(name: str) -> int:
    try:
        with open(f"/proc/{name}/status", "rb") as file:
            line = next((line for line in file if line.startswith(b"NSpid:")), b"")
        return int(line.split()[-1])
    except (OSError, ValueError, IndexError):  # it ended meanwhile
        return UNKNOWN


def _has_mapped(name: str, inode: int) -> bool:
    try:
        with open(f"/proc/{name}/maps") as file:
            for line in file:
                fields = line.split(maxsplit=5)
                if len(fields) > 5 and fields[4] == str(inode):  # noqa: PLR2004 (proc_pid_maps(5))
                    return fields[5].rstrip().removesuffix(" (deleted)").endswith(_MAPPED)
    except OSError:
        pass
    return False
