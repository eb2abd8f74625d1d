"""Compares what the driver reports of a container's processes with its ledger: a pure function.

A ledger is charged before the driver allocates, and credited after the driver frees. So an honest
process never holds more than its ledger shows, with two exceptions: what ``compute_allowance``
covers, and memory for which another process of its container pays. But ledger and driver are read
one after the other, so a comparison may see memory that was allocated and freed in between.
``intersect_verdicts`` keeps what several comparisons agree on.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from cgpu_env.values import MIB

Tenant = tuple[str, int]  # a container's directory, and the number of one of its GPUs
Kind = Literal["drift", "bypass"]

# What a process may hold beyond its ledger: code that the driver loads late, and blocks that the
# driver keeps. docs/design/server.md has the figures.
_ROUNDING_BYTES = 64 * MIB
_UNKNOWN_CONTEXT_BYTES = 640 * MIB  # if the host could not measure it; the largest known is 616
DRIFT_BYTES = 256 * MIB
"""No known behaviour of the driver explains more than this beyond the allowance."""


class ReportedMemory(NamedTuple):
    """The memory of one process that the driver reports.

    Attributes:
        pid: the process's pid on the host.
        own_pid: its pid in its own namespace, as in its ledger.
        used_bytes: what it holds of the GPU.
        ends: whether it is exiting. Its slot in the ledger may then be free before its memory is.
    """

    pid: int
    own_pid: int
    used_bytes: int
    ends: bool = False


class LedgerAccount(NamedTuple):
    """The account of one GPU in a ledger.

    Attributes:
        total_bytes: the sum that the cap applies to.
        slots: bytes by own pid; 0 for a process that only holds memory of another GPU.
        shared: bytes by own pid that the process has imported and another one is charged for. It is
            not known for which of the two the driver reports them.
        paid_bytes: how much is shared and charged to one of the processes that have it.
        importers: how many processes have imported any of that.
    """

    total_bytes: int
    slots: Mapping[int, int]
    shared: Mapping[int, int] = {}
    paid_bytes: int = 0
    importers: int = 0

    @property
    def repeated_bytes(self) -> int:
        """Return how many bytes the driver counts again at most, if it names each importer."""
        return max(0, self.importers - 1) * self.paid_bytes

    def most_bytes(self, own_pid: int) -> int:
        """Return the most memory that the ledger allows a process to hold."""
        return self.slots.get(own_pid, 0) + self.shared.get(own_pid, 0)


class Discrepancy(NamedTuple):
    """Memory that is not in the ledger.

    Attributes:
        kind: ``drift``, if the process charges its memory, or ``bypass``, if it goes past cgpu.
        pids: host pids of the processes that hold it; empty if only the ledger's sum is exceeded. A
            bypass lists no process for memory that another one holds.
        excess_bytes: how much it is.
    """

    kind: Kind
    pids: tuple[int, ...]
    excess_bytes: int


class Verdict(NamedTuple):
    """A container's memory outside its ledger on one GPU: the sum, and its parts."""

    outside_bytes: int = 0
    findings: tuple[Discrepancy, ...] = ()


CALM = Verdict()


def compute_allowance(context_bytes: int) -> int:
    """Return what a process may hold beyond its ledger if a context costs ``context_bytes``."""
    return _ROUNDING_BYTES + (context_bytes // 4 or _UNKNOWN_CONTEXT_BYTES)


def merge_larger(before: LedgerAccount, after: LedgerAccount) -> LedgerAccount:
    """Return the larger of two readings of a ledger, for each slot."""
    return LedgerAccount(
        max(before.total_bytes, after.total_bytes),
        _max_by_pid(before.slots, after.slots),
        _max_by_pid(before.shared, after.shared),
        max(before.paid_bytes, after.paid_bytes),
        max(before.importers, after.importers),
    )


def bound_account(account: LedgerAccount, promised_bytes: int) -> LedgerAccount:
    """Return the account without amounts that its container cannot have been charged."""
    return LedgerAccount(
        min(account.total_bytes, promised_bytes),
        {pid: min(used, promised_bytes) for pid, used in account.slots.items()},
        {pid: min(used, promised_bytes) for pid, used in account.shared.items()},
        min(account.paid_bytes, promised_bytes),
        account.importers,
    )


def sum_explained(held: Sequence[ReportedMemory], account: LedgerAccount) -> int:
    """Return how much of the memory that processes hold is in their ledger."""
    by_process = sum(
        min(sum(each.used_bytes for each in group), account.most_bytes(own_pid))
        for own_pid, group in _group_by_pid(held)
    )
    return min(by_process, account.total_bytes)  # slots that are not in the sum explain nothing


def judge_container(
    held: Sequence[ReportedMemory],
    account: LedgerAccount,
    context_bytes: int,
    unexplained_bytes: int,
) -> Verdict:
    """Compare what a container's processes hold of a GPU with its ledger.

    Args:
        held: what the driver reports.
        account: the ledger's account: the larger of the readings before and after the driver's
            report.
        context_bytes: what a context costs on this GPU; 0: unknown.
        unexplained_bytes: memory of the whole GPU that is in use and in no ledger. Figures of
            processes may count shared memory twice; this figure does not.
    """
    found = [
        finding
        for own_pid, group in _group_by_pid(held)
        if (finding := _judge_group(group, own_pid, account, context_bytes)) is not None
    ]
    by_process = sum(finding.excess_bytes for finding in found)
    most = account.total_bytes + len(held) * compute_allowance(context_bytes)
    beyond_sum = sum(each.used_bytes for each in held) - most - by_process
    if beyond_sum > 0:  # each slot is right: the sum was lowered, or shared memory counts twice
        # the figure for the whole GPU counts no memory twice
        there = by_process + beyond_sum <= unexplained_bytes
        twice = beyond_sum <= account.repeated_bytes and not there
        found.append(Discrepancy("drift" if twice else "bypass", (), beyond_sum))
    outside = min(by_process + max(0, beyond_sum), unexplained_bytes)
    return Verdict(outside, tuple(found)) if outside > 0 else CALM


def intersect_verdicts(first: Verdict, second: Verdict) -> Verdict:
    """Return what two verdicts agree on, and of each finding the milder one."""
    before = {finding.pids: finding for finding in first.findings}
    both = [
        Discrepancy(
            "bypass" if finding.kind == before[finding.pids].kind == "bypass" else "drift",
            finding.pids,
            min(finding.excess_bytes, before[finding.pids].excess_bytes),
        )
        for finding in second.findings
        if finding.pids in before
    ]
    return Verdict(min(first.outside_bytes, second.outside_bytes), tuple(both))


def excuse_bypasses(verdict: Verdict, pids: Container[int]) -> Verdict:
    """Return the verdict with the bypasses of ``pids`` as drift; what they hold stays charged."""
    findings = tuple(
        finding._replace(kind="drift")
        if finding.pids and all(pid in pids for pid in finding.pids)
        else finding
        for finding in verdict.findings
    )
    return verdict._replace(findings=findings)


def _group_by_pid(held: Iterable[ReportedMemory]) -> list[tuple[int, list[ReportedMemory]]]:
    """Return groups by own pid: processes in nested namespaces of a container may have the same."""
    found: dict[int, list[ReportedMemory]] = {}
    for each in held:
        found.setdefault(each.own_pid, []).append(each)
    return [*found.items()]


def _max_by_pid(one: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    return {pid: max(one.get(pid, 0), other.get(pid, 0)) for pid in one.keys() | other.keys()}


def _judge_group(
    group: list[ReportedMemory], own_pid: int, account: LedgerAccount, context_bytes: int
) -> Discrepancy | None:
    # if contexts cost nothing here, it may have a context that was charged as 0
    stranger = own_pid not in account.slots and context_bytes > 0
    free = 0 if stranger else compute_allowance(context_bytes)
    known = account.most_bytes(own_pid)
    excess = sum(each.used_bytes for each in group) - known - len(group) * free
    if excess <= 0:
        return None
    # it is not known which of them has the slot: accuse those that hold more even if it is theirs
    own = [each for each in group if each.used_bytes > known + free]
    ends = any(each.ends for each in group)
    beyond = stranger or excess > DRIFT_BYTES
    pids = tuple(sorted(each.pid for each in own or group))
    return Discrepancy("bypass" if own and beyond and not ends else "drift", pids, excess)
