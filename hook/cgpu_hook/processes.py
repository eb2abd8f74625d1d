"""Which processes hold a container's memory, and which of the host's processes they are.

A ledger knows them by the ids that they have in namespaces of their own, as they say themselves. A
process of the host is one of them if it goes by that id and has the container's ledger mapped.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NamedTuple

import cgpu_native
from cgpu_hook.liveness import folder_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cgpu_hook.record import Record

UNKNOWN = 0  # of a process that has just ended, or hides
_MAPPED = b"/ledger"
_PATIENCE_SECONDS = 0.5


class Holding(NamedTuple):
    """A process and the bytes that it holds on one GPU.

    Attributes:
        pid: on the host, as whoever looks sees the host; 0 where it was not found there.
        used_bytes: what it holds.
        container_pid: as the process and others in its container know it.
    """

    pid: int
    used_bytes: int
    container_pid: int


def said(ledger: cgpu_native.Ledger, place: int) -> tuple[Holding, ...]:
    """Who holds memory on the container's GPU at ``place``, as the ledger has it."""
    return tuple(Holding(UNKNOWN, each.used_bytes, each.pid) for each in ledger.processes(place))


def holdings(record: Record, place: int) -> tuple[Holding, ...]:
    """The same with ids of the host; nobody where the ledger is ruined."""
    return holdings_of([record])[record.directory][place]


def holdings_of(records: Sequence[Record]) -> dict[str, list[tuple[Holding, ...]]]:
    """The same of several containers, by their directories, on each of their GPUs."""
    held = [(record, found) for record in records for found in _said(record)]
    located: dict[str, list[tuple[Holding, ...]]] = {record.directory: [] for record in records}
    for (record, _), found in zip(held, locate(held), strict=True):
        located[record.directory].append(found)
    return located


def _said(record: Record) -> list[tuple[Holding, ...]]:
    places = range(len(record.gpus))
    try:
        with cgpu_native.Ledger.observe(f"{record.directory}/ledger") as ledger:
            return [said(ledger, place) for place in places]
    except (OSError, cgpu_native.NativeError):  # it ends just now
        return [() for _ in places]


def locate(held: Sequence[tuple[Record, tuple[Holding, ...]]]) -> list[tuple[Holding, ...]]:
    """The same holdings, each of one container on one GPU, with their ids on the host.

    Containers can have many processes with many mappings: those that were not found in half a
    second are left without.
    """
    inodes = [_inode(record) if own else UNKNOWN for record, own in held]
    pids = {each.container_pid for _, own in held for each in own}
    hosts = _hosts(pids, {*inodes} - {UNKNOWN}) if pids else {}
    return [
        tuple(_located(own, {pid: [*them] for (of, pid), them in hosts.items() if of == inode}))
        for inode, (_, own) in zip(inodes, held, strict=True)
    ]


def _located(own: tuple[Holding, ...], hosts: dict[int, list[int]]) -> Iterator[Holding]:
    for each in own:
        same = hosts.get(each.container_pid)  # those in further namespaces may share an id
        yield each._replace(pid=same.pop(0)) if same else each


def _inode(record: Record) -> int:
    try:
        return os.stat(f"{record.directory}/ledger").st_ino
    except OSError:  # it ends just now
        return UNKNOWN


def _hosts(pids: set[int], inodes: set[int]) -> dict[tuple[int, int], list[int]]:
    """The processes of the host by ledger and by the id that they know themselves by."""
    found: dict[tuple[int, int], list[int]] = {}
    deadline = time.monotonic() + _PATIENCE_SECONDS
    for name in filter(str.isdecimal, os.listdir("/proc")):
        if time.monotonic() > deadline:
            break
        own = _own_pid(name)
        ledger = _mapped(name, inodes) if own in pids else UNKNOWN
        if ledger:
            found.setdefault((ledger, own), []).append(int(name))
    return found


def _own_pid(name: str) -> int:
    try:
        with open(f"/proc/{name}/status", "rb") as file:
            line = next((line for line in file if line.startswith(b"NSpid:")), b"")
        return int(line.split()[-1])
    except (OSError, ValueError, IndexError):  # it ended meanwhile
        return UNKNOWN


def _mapped(name: str, inodes: set[int]) -> int:
    """Which of these ledgers the process has mapped."""
    try:
        with open(f"{folder_of(int(name))}/maps", "rb") as file:  # whose paths need not be text
            for line in file:
                if _MAPPED not in line:  # so are nearly all
                    continue
                fields = line.split(maxsplit=5)  # proc_pid_maps(5)
                path = b"".join(fields[5:]).rstrip().removesuffix(b" (deleted)")
                if path.endswith(_MAPPED) and int(fields[4]) in inodes:
                    return int(fields[4])
    except OSError:
        pass
    return UNKNOWN
