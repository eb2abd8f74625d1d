"""Which container a process of the host is in.

A container's processes are in a control group whose path contains the container's id, in a form
that depends on the engine. A session of ``cgpu-run`` has no control group of its own: its processes
have its limits mounted, or its ledger mapped if there are no namespaces, or descend from its
keeper.
"""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING, NamedTuple

from cgpu_node.shares.liveness import folder_of, mounts, start_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cgpu_node.shares.record import Record

# What engines put before the id in the name of a systemd scope.
_PREFIXES = ("docker", "cri-containerd", "crio", "libpod", "nerdctl", "runc", "crun")
_LONG_ID = re.compile(r"[0-9a-f]{64}")  # a match whatever comes before it
_SUFFIX = ".scope"
_DEPTH = 64  # of a chain of parents, at most
_NOBODY = 0
_MOUNTS_CPU_S = 0.1  # of CPU time, for reading one process's mounts


class Process(NamedTuple):
    """A process of the host.

    Attributes:
        pid: on the host.
        start_time: as ``liveness.start_time`` gives it; ids are used again.
        own_pid: in its own pid namespace.
        parent: on the host.
        uid: the user it runs as.
        ends: whether it has released its memory and is exiting.
    """

    pid: int
    start_time: int
    own_pid: int
    parent: int
    uid: int
    ends: bool


def read_process(pid: int) -> Process | None:
    """Read a process from /proc; None if it is gone."""
    started = start_time(pid)
    try:
        with open(f"{folder_of(pid)}/status", "rb") as file:
            lines = (line.partition(b":") for line in file)
            facts = {key: value.split() for key, _, value in lines}
        return None if started is None else _process(pid, started, facts)
    except (OSError, KeyError, ValueError, IndexError):
        return None


def _process(pid: int, started: int, facts: Mapping[bytes, Sequence[bytes]]) -> Process:
    own_pid, parent, uid = (int(facts[key][-1]) for key in (b"NSpid", b"PPid", b"Uid"))
    return Process(pid, started, own_pid, parent, uid, b"VmSize" not in facts)


def container_in(groups: Iterable[str], ids: Mapping[str, str] | Iterable[str]) -> str | None:
    """The container of a process with these control groups.

    Args:
        groups: lines of ``/proc/PID/cgroup``, of either version.
        ids: of all containers.
    """
    known = frozenset(ids)
    for line in groups:
        # from the root down: the container itself names what is below its group
        for component in line.rstrip("\n").split(":", 2)[-1].split("/"):
            found = _named(component, known)
            if found is not None:
                return found
    return None


def _named(component: str, ids: frozenset[str]) -> str | None:
    name = component.removesuffix(_SUFFIX)
    if name in ids:
        return name
    for prefix in _PREFIXES:
        rest = name.removeprefix(f"{prefix}-")
        if rest in ids and component.endswith(_SUFFIX):
            return rest
    last = name.rpartition("-")[2]
    return last if last in ids and _LONG_ID.fullmatch(last) else None


class ContainerLookup:
    """Finds the container or session of a process, among ``records``."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._records = {record.id: record for record in records}
        self._sessions = [r for r in self._records.values() if r.kind == "session"]

    def of(self, process: Process) -> Record | None:
        """The container or session of a process; None for a process of the host."""
        found = container_in(_lines(process.pid, "cgroup"), self._records)
        if found is not None and self._records[found].kind == "container":
            return self._records[found]
        return self._mounted(process) or self._session(process)

    def _mounted(self, process: Process) -> Record | None:
        """The container whose limits are mounted where the process runs, if that can be read."""
        until = time.thread_time() + _MOUNTS_CPU_S
        rows = (row for row in mounts(folder_of(process.pid), until) if row is not None)
        mounted = {(row[2].decode(), row[3]) for row in rows if row[3].endswith(b"/limits")}
        for record in self._records.values() if mounted else ():
            facts = _stat(f"{record.directory}/limits")
            if facts is None:
                continue
            device = f"{os.major(facts.st_dev)}:{os.minor(facts.st_dev)}"
            tail = os.fsencode(f"/containers/{record.id}/limits")
            here = any(dev == device and root.endswith(tail) for dev, root in mounted)
            if here and self._may_be(record, process):
                return record
        return None

    def _session(self, process: Process) -> Record | None:
        """The session whose ledger it has mapped, or whose keeper it descends from."""
        for record in self._sessions:
            facts = _stat(f"{record.directory}/ledger")
            ledger = f"{record.directory}/ledger"
            if facts and self._may_be(record, process) and _maps(process.pid, facts.st_ino, ledger):
                return record
        keepers = {record.owner.pid: record for record in self._sessions}
        pid = process.pid
        for _ in range(_DEPTH):
            keeper = keepers.get(pid)
            if keeper and start_time(pid) == keeper.owner.start_time:
                return keeper
            above = read_process(pid)
            if above is None or above.parent == _NOBODY:
                break
            pid = above.parent
        return None

    @staticmethod
    def _may_be(record: Record, process: Process) -> bool:
        """False for another user's process, which could have mounted anything like that."""
        if record.kind == "container":  # its root can give the ledger to anybody
            return True
        facts = _stat(f"{record.directory}/ledger")
        return facts is not None and facts.st_uid in {0, process.uid}


class OwnerTracker:
    """Remembers the containers of the processes that the driver reports, as long as it does."""

    def __init__(self) -> None:
        self._since: dict[int, int] = {}
        self._known: dict[int, tuple[Process, Record | None]] = {}

    def of(
        self, pids: Iterable[int], records: Iterable[Record]
    ) -> dict[int, tuple[Process, Record | None]]:
        """The known ones of these processes, with their containers.

        The driver may report a process that is gone, because a child keeps the device open. It is
        then the process that had the pid before, and never a younger one that has the pid now.
        """
        lookup, now = ContainerLookup(records), _ticks()
        self._since = {pid: self._since.get(pid, now) for pid in pids}
        found = {}
        for pid, since in self._since.items():
            process = read_process(pid)
            if process is not None and process.start_time <= since:
                found[pid] = process, lookup.of(process)
            elif pid in self._known:
                process, record = self._known[pid]
                found[pid] = process._replace(ends=True), record
        self._known = found
        return found

    def known(self, pid: int) -> Process | None:
        """The process that the driver last reported by this pid."""
        return self._known[pid][0] if pid in self._known else None


def _ticks() -> int:
    """The current time in the unit of processes' start times."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def _maps(pid: int, inode: int, path: str) -> bool:
    number = str(inode)
    return any(
        (fields := line.split(maxsplit=5))[4] == number and fields[-1].rstrip() == path
        for line in _lines(pid, "maps")
    )


def _lines(pid: int, name: str) -> list[str]:
    try:
        # Paths need not be text, and only a line feed ends a line.
        with open(f"{folder_of(pid)}/{name}", errors="replace", newline="\n") as file:
            return file.readlines()
    except OSError:  # it ended meanwhile, or is another user's
        return []


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None
