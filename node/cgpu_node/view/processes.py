"""The processes that hold a container's memory, and their pids on the host.

The ledger has the pids that its processes report, which are those in their own namespaces. A
process of the host is one of them if it has that pid in its namespace and has the ledger mapped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import cgpu_native
from cgpu_node.shares.liveness import folder_of
from cgpu_node.shares.mappings import LedgerFile, ledgers_of, mapped_ledgers
from cgpu_node.shares.record import Record
from cgpu_node.view import marks

UNKNOWN = 0  # of a process that has just ended, or hides
# The most CPU time to read the mappings of one process, and of all.
_CPU_S, _ALL_CPU_S = 0.05, 0.3


class Holding(NamedTuple):
    """A process, and the bytes that it holds on one GPU.

    Attributes:
        pid: its pid on the host, as the reader sees the host; 0 if it was not found there.
        used_bytes: what it holds.
        container_pid: its pid as it and others in its container know it.
    """

    pid: int
    used_bytes: int
    container_pid: int


class LedgerView(NamedTuple):
    """The content of a container's ledger.

    Attributes:
        gpus: for each of the container's GPUs, who holds memory there.
        refused: for each of its GPUs, how many requests for memory did not fit.
        mark: why the ledger cannot be read in full (``marks``); None: it can.
    """

    gpus: list[tuple[Holding, ...]]
    refused: list[int]
    mark: str | None


def read_ledger(record: Record) -> LedgerView:
    """Read a container's ledger, without host pids; nothing if it cannot be read."""
    numbers = range(len(record.gpus))
    try:
        with cgpu_native.Ledger.observe(f"{record.directory}/ledger") as ledger:
            look = ledger.look()
            gpus = [tuple(map(_to_holding, look.list_processes(number))) for number in numbers]
            mark = None if look.is_certain else marks.LOCKS
            return LedgerView(gpus, [ledger.read_refused(number) for number in numbers], mark)
    except (OSError, cgpu_native.NativeError) as error:
        return LedgerView([() for _ in numbers], [0 for _ in numbers], marks.from_error(error))


def _to_holding(process: cgpu_native.LedgerProcess) -> Holding:
    return Holding(UNKNOWN, process.used_bytes, process.pid)


def locate_holdings(held: Sequence[tuple[str, tuple[Holding, ...]]]) -> list[tuple[Holding, ...]]:
    """Add pids on the host to holdings, each of one container on one GPU.

    Containers can have many processes with many mappings. So all of this takes at most 0.3 s of CPU
    time, and at most 0.05 s for each process. A holding whose process was not found by then gets no
    host pid.

    Args:
        held: the container's directory, and its holdings.
    """
    pids = {each.container_pid for _, own in held for each in own}
    ledgers = ledgers_of(directory for directory, own in held if own)
    hosts = _find_host_pids(pids, {*ledgers.values()}) if pids else {}
    return [
        tuple(_add_host_pids(own, {p: [*them] for (of, p), them in hosts.items() if of == ledger}))
        for ledger, own in ((ledgers.get(directory), own) for directory, own in held)
    ]


def _add_host_pids(own: tuple[Holding, ...], hosts: dict[int, list[int]]) -> Iterator[Holding]:
    for each in own:
        same = hosts.get(each.container_pid)  # those in further namespaces may share an id
        yield each._replace(pid=same.pop(0)) if same else each


def _find_host_pids(
    pids: set[int], ledgers: set[LedgerFile]
) -> dict[tuple[LedgerFile, int], list[int]]:
    """Return the processes of the host by ledger and by their pid in their own namespace."""
    found: dict[tuple[LedgerFile, int], list[int]] = {}
    until = time.thread_time() + _ALL_CPU_S
    for name in filter(str.isdecimal, os.listdir("/proc")):
        now = time.thread_time()
        if now > until:
            break
        own = _own_pid(name)
        most = min(now + _CPU_S, until)
        mapped = mapped_ledgers(folder_of(int(name)), most) if own in pids else ()
        ledger = next((each for each in mapped if each in ledgers), None)
        if ledger is not None:
            found.setdefault((ledger, own), []).append(int(name))
    return found


def _own_pid(name: str) -> int:
    try:
        with open(f"/proc/{name}/status", "rb") as file:
            line = next((line for line in file if line.startswith(b"NSpid:")), b"")
        return int(line.split()[-1])
    except (OSError, ValueError, IndexError):  # it ended meanwhile
        return UNKNOWN
