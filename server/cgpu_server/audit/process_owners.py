"""Finds the container that a process of the host is in.

Users name control groups and mount files as they like. So a process is in a container if it has the
container's own limits mounted, or is in the control group of the container's first process. A
session of ``cgpu-run`` has no control group of its own: its processes have its limits mounted, or
its ledger mapped if there are no namespaces, or descend from its keeper.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from cgpu_node.facts.engines import ENGINES
from cgpu_node.facts.runc_state import first_process_of
from cgpu_node.shares.liveness import folder_of, start_time
from cgpu_node.shares.mappings import ledgers_of, mapped_ledgers
from cgpu_node.shares.mountinfo import Origin, origin_of, read_mounts
from cgpu_node.shares.record import ledger_owner

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from cgpu_node.shares.mappings import LedgerFile
    from cgpu_node.shares.record import Owner, Record

# Prefixes that engines put before the id in the name of a systemd scope.
_PREFIXES = (*(row.scope for row in ENGINES), "runc", "crun")
_LONG_ID = re.compile(r"[0-9a-f]{64}")  # a match whatever comes before it
_SUFFIX = ".scope"
_DEPTH = 64  # of a chain of parents, at most
_NOBODY = 0
# The most CPU time to read the mounts and mappings of one process in its life, and of all processes
# in one pass.
_READ_CPU_S, _ALL_READ_CPU_S = 0.1, 0.3


class HostProcess(NamedTuple):
    """A process of the host.

    Attributes:
        pid: its pid on the host.
        start_time: its start (``liveness.start_time``), because pids are reused.
        own_pid: its pid in its own pid namespace.
        parent: its parent's pid on the host.
        uid: the user it runs as.
        ends: whether it has released its memory and is exiting.
    """

    pid: int
    start_time: int
    own_pid: int
    parent: int
    uid: int
    ends: bool


def read_process(pid: int) -> HostProcess | None:
    """Read a process from /proc; None if it is gone."""
    started = start_time(pid)
    try:
        with open(f"{folder_of(pid)}/status", "rb") as file:
            lines = (line.partition(b":") for line in file)
            facts = {key: value.split() for key, _, value in lines}
        return None if started is None else _parse_process(pid, started, facts)
    except (OSError, KeyError, ValueError, IndexError):
        return None


def _parse_process(pid: int, started: int, facts: Mapping[bytes, Sequence[bytes]]) -> HostProcess:
    own_pid, parent, uid = (int(facts[key][-1]) for key in (b"NSpid", b"PPid", b"Uid"))
    return HostProcess(pid, started, own_pid, parent, uid, b"VmSize" not in facts)


class Group(NamedTuple):
    """A control group: its hierarchy, as in ``/proc/PID/cgroup``, and its path."""

    hierarchy: str
    path: str


def parse_groups(lines: Iterable[str]) -> Iterator[Group]:
    """Yield the control groups in ``/proc/PID/cgroup``, of either version."""
    for line in lines:
        number, _, rest = line.rstrip("\n").partition(":")
        controllers, _, path = rest.partition(":")
        yield Group(f"{number}:{controllers}", path)


def find_home_groups(groups: Iterable[Group], id_: str) -> set[Group]:
    """Return those of the first process's ``groups`` that are named after the container's id."""
    found = set()
    for group in groups:
        components = group.path.split("/")
        for depth, component in enumerate(components, start=1):
            if _is_named_by(component, id_):
                found.add(group._replace(path="/".join(components[:depth])))
                break
    return found


def find_container_id(groups: Iterable[Group], homes: Mapping[Group, str]) -> str | None:
    """Return the container in whose groups a process is; the innermost one if they are nested."""
    for hierarchy, path in groups:
        components = path.split("/")
        for depth in range(len(components), 1, -1):
            found = homes.get(Group(hierarchy, "/".join(components[:depth])))
            if found is not None:
                return found
    return None


def _is_named_by(component: str, id_: str) -> bool:
    name = component.removesuffix(_SUFFIX)
    if name == id_:
        return True
    if component.endswith(_SUFFIX) and any(name == f"{prefix}-{id_}" for prefix in _PREFIXES):
        return True
    return name.rpartition("-")[2] == id_ and _LONG_ID.fullmatch(id_) is not None


class ContainerLookup:
    """Finds the container or session of a process, among ``records``.

    Args:
        records: the living containers and sessions.
        homes: for each control group of a container, the container's id.
        spent: how long each process has been read, by pid and start time. ``find`` adds to it.
    """

    def __init__(
        self,
        records: Iterable[Record],
        homes: Mapping[Group, str] | None = None,
        spent: dict[tuple[int, int], float] | None = None,
    ) -> None:
        self._records = {record.id: record for record in records}
        self._sessions = [r for r in self._records.values() if r.kind == "session"]
        self._homes = homes or {}
        self._spent = {} if spent is None else spent
        self._limits = _limits_of(self._records.values())
        self._mounted_in: dict[str, Record | None] = {}
        self._until = time.thread_time() + _ALL_READ_CPU_S

    def find(self, process: HostProcess) -> Record | None:
        """Return the container or session of a process; None for a process of the host."""
        found = find_container_id(_read_groups(process.pid), self._homes)
        if found is not None:
            return self._records.get(found)
        return self._find_by_mounts(process) or self._find_session(process)

    def _find_by_mounts(self, process: HostProcess) -> Record | None:
        """Return the container whose limits the process has mounted, if its mounts can be read."""
        folder = folder_of(process.pid)
        try:
            namespace = os.readlink(f"{folder}/ns/mnt")
        except OSError:  # it is gone, or another user's
            return None
        if namespace not in self._mounted_in:
            self._mounted_in[namespace] = self._read_mounts(folder, process)
        record = self._mounted_in.get(namespace)
        return record if record is not None and self._may_own(record, process) else None

    def _read_mounts(self, folder: str, process: HostProcess) -> Record | None:
        with self._budget_reading(process) as until:
            for mount in read_mounts(folder, until, b"/limits") if until else ():
                if mount is not None and mount.origin in self._limits:
                    return self._limits[mount.origin]
        return None

    @contextmanager
    def _budget_reading(self, process: HostProcess) -> Iterator[float]:
        """Yield until when, by the thread's time, this process may be read; 0: no longer.

        Even a process that takes little time in each pass must not take it for ever, so that others
        are read too.
        """
        begun, spent = time.thread_time(), self._spent.get(process[:2], 0.0)
        yield min(begun + _READ_CPU_S - spent, self._until) if spent < _READ_CPU_S else 0.0
        self._spent[process[:2]] = spent + time.thread_time() - begun

    def _find_session(self, process: HostProcess) -> Record | None:
        """Return the session whose ledger it has mapped, or whose keeper it descends from."""
        record = self._find_by_ledger(process) if self._sessions else None
        if record is not None:
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

    def _find_by_ledger(self, process: HostProcess) -> Record | None:
        """Return the session whose ledger a process has mapped, if that can be read."""
        with self._budget_reading(process) as until:
            for ledger in mapped_ledgers(folder_of(process.pid), until) if until else ():
                record = None if ledger is None else self._session_ledgers.get(ledger)
                if record is not None and self._may_own(record, process):
                    return record
        return None

    @cached_property
    def _session_ledgers(self) -> dict[LedgerFile, Record]:
        found = ledgers_of(record.directory for record in self._sessions)
        return {found[r.directory]: r for r in self._sessions if r.directory in found}

    @staticmethod
    def _may_own(record: Record, process: HostProcess) -> bool:
        """Whether the process may be in ``record``: everybody can mount a guest's limits."""
        if record.kind != "session":  # a container's root can give the ledger to anybody
            return True
        return ledger_owner(record.directory) in {0, process.uid}


class Homes:
    """Remembers the containers' own control groups, because the first process may leave them."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, Owner], set[Group]] = {}

    def update(self, records: Iterable[Record]) -> dict[Group, str]:
        """Return by group the ids of the ``records`` whose first process was seen."""
        found = {}
        for record in records:
            key = record.directory, record.owner
            if record.kind == "container":
                found[key] = self._known.get(key) or _home_of(record)
        self._known = found
        return {group: os.path.basename(key[0]) for key, home in found.items() for group in home}


def _home_of(record: Record) -> set[Group]:
    owner = record.owner
    # if there are no files of a low-level runtime, the owner may be the first process
    first = (owner.runtime_dir and first_process_of(owner.runtime_dir)) or owner[:2]
    if start_time(first[0]) != first[1]:
        return set()
    return find_home_groups(_read_groups(first[0]), record.id)


def _limits_of(records: Iterable[Record]) -> dict[Origin, Record]:
    """Return the records by the identity of their limits. All limits are below one folder."""
    folders: dict[str, Origin | None] = {}
    found = {}
    for record in records:
        folder, name = os.path.split(record.directory)
        if folder not in folders:
            folders[folder] = origin_of(folder)
        origin = folders[folder]
        if origin is not None:
            found[Origin(origin.device, origin.path + os.fsencode(f"/{name}/limits"))] = record
    return found


class OwnerTracker:
    """Remembers which containers processes are in, as long as the driver reports them."""

    def __init__(self) -> None:
        self._since: dict[int, int] = {}
        self._known: dict[int, tuple[HostProcess, Record | None]] = {}
        self._homes = Homes()
        self._groups: dict[Group, str] = {}
        self._spent: dict[tuple[int, int], float] = {}

    def find_owners(
        self, pids: Iterable[int], records: Iterable[Record]
    ) -> dict[int, tuple[HostProcess, Record | None]]:
        """Return those of the processes that are known, with their containers.

        The driver may report a process that is gone, because a child keeps the device open. Its pid
        then means the earlier process, never a younger one that has the pid now.
        """
        records, now = tuple(records), _read_ticks()
        self._groups = self._homes.update(records)
        lookup = ContainerLookup(records, self._groups, self._spent)
        living = {(record.directory, record.owner): record for record in records}
        self._since = {pid: self._since.get(pid, now) for pid in pids}
        found = {}
        for pid, since in self._since.items():
            process = read_process(pid)
            if process is not None and process.start_time <= since:
                # a process that was seen in a container belongs to it, even if it has unmounted
                # files since
                found[pid] = process, self._find_earlier(process, living) or lookup.find(process)
            elif pid in self._known:
                process, record = self._known[pid]
                found[pid] = process._replace(ends=True), record
        self._known = found
        there = {process[:2] for process, _ in found.values()}
        self._spent = {each: spent for each, spent in self._spent.items() if each in there}
        return found

    def _find_earlier(
        self, process: HostProcess, living: Mapping[tuple[str, Owner], Record]
    ) -> Record | None:
        before, record = self._known.get(process.pid, (None, None))
        if before is None or record is None or before[:2] != process[:2]:
            return None
        return living.get((record.directory, record.owner))

    def is_still(self, process: HostProcess, record: Record) -> bool:
        """Whether a process is still in this container, as far as that can be seen."""
        return ContainerLookup([record], self._groups).find(process) is record

    def find_known(self, pid: int) -> HostProcess | None:
        """Return the process that the driver last reported under this pid."""
        return self._known[pid][0] if pid in self._known else None


def _read_ticks() -> int:
    """Return the current time in the unit of processes' start times."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def _read_groups(pid: int) -> list[Group]:
    try:
        # Paths need not be text. Only a line feed ends a line.
        with open(f"{folder_of(pid)}/cgroup", errors="replace", newline="\n") as file:
            return [*parse_groups(file)]
    except OSError:  # it ended meanwhile, or is another user's
        return []
