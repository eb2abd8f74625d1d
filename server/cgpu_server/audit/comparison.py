"""What the driver says of a container's processes against its ledger: pure, without a system call.

The ledger charges before the driver gives and gives back after it took, so at any moment an honest
process holds no more than its ledger says, but for what ``allowance`` covers. The two are read one
after the other, however, so one comparison may see memory that was taken and given back between:
``steady`` keeps what several comparisons agree on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    Kind = Literal["drift", "bypass"]

MIB = 1 << 20
# What a process may hold beyond its ledger: code that the driver loads late, blocks that it keeps
# for itself. docs/decisions/0740-audit.md has the figures.
_ROUNDING_BYTES = 64 * MIB
_UNKNOWN_CONTEXT_BYTES = 640 * MIB  # where the host could not measure it; the largest known is 616
DRIFT_BYTES = 256 * MIB
"""So much beyond the allowance no known behaviour of the driver explains."""


class Held(NamedTuple):
    """What the driver says of one process.

    Attributes:
        pid: on the host.
        own_pid: as the process knows itself, and as its ledger does.
        used_bytes: what it holds of the GPU.
        ends: whether it is about to be gone, its ledger's slot perhaps before its memory.
    """

    pid: int
    own_pid: int
    used_bytes: int
    ends: bool = False


class Account(NamedTuple):
    """What the ledger says of one GPU.

    Attributes:
        total_bytes: the sum that the container's requests are compared with.
        slots: bytes by the process's own pid; 0 for one that holds memory of another GPU only.
    """

    total_bytes: int
    slots: Mapping[int, int]


class Finding(NamedTuple):
    """Memory that the ledger does not know of.

    Attributes:
        kind: ``drift`` of a process that takes part in the ledger, or ``bypass`` of cgpu.
        pids: who holds it, on the host; nobody in particular where the ledger's sum is wrong.
        excess_bytes: how much it is.
    """

    kind: Kind
    pids: tuple[int, ...]
    excess_bytes: int


class Verdict(NamedTuple):
    """What a container holds around its ledger on one GPU, in all and in particular."""

    outside_bytes: int = 0
    findings: tuple[Finding, ...] = ()


CALM = Verdict()


def allowance(context_bytes: int) -> int:
    """What one process may hold beyond its ledger, where a context costs ``context_bytes``."""
    return _ROUNDING_BYTES + (context_bytes // 4 or _UNKNOWN_CONTEXT_BYTES)


def larger(before: Account, after: Account) -> Account:
    """Of two looks at a ledger, the more that each account said."""
    slots = {**before.slots}
    for pid, used in after.slots.items():
        slots[pid] = max(used, slots.get(pid, 0))
    return Account(max(before.total_bytes, after.total_bytes), slots)


def at_most(account: Account, promised_bytes: int) -> Account:
    """What can be true of an account whose container was promised so much."""
    slots = {pid: min(used, promised_bytes) for pid, used in account.slots.items()}
    return Account(min(account.total_bytes, promised_bytes), slots)


def explained(held: Sequence[Held], account: Account) -> int:
    """How much of what processes hold their ledger knows of."""
    by_process = sum(
        min(sum(each.used_bytes for each in group), account.slots.get(own_pid, 0))
        for own_pid, group in _groups(held)
    )
    return min(by_process, account.total_bytes)  # slots that are in no sum explain nothing


def judge(
    held: Sequence[Held], account: Account, context_bytes: int, unexplained_bytes: int
) -> Verdict:
    """Compare what a container's processes hold of a GPU with its ledger.

    Args:
        held: what the driver says.
        account: what the ledger says; the larger of before and after the driver was asked.
        context_bytes: what a context costs on this GPU; 0: unknown.
        unexplained_bytes: what is in use of the whole GPU and in no ledger; the figures of
            processes may count shared memory twice, that of the GPU does not.
    """
    found = [
        finding
        for own_pid, group in _groups(held)
        if (finding := _of_group(group, account.slots.get(own_pid), context_bytes)) is not None
    ]
    by_process = sum(finding.excess_bytes for finding in found)
    most = account.total_bytes + len(held) * allowance(context_bytes)
    beyond_sum = sum(each.used_bytes for each in held) - most - by_process
    if beyond_sum > 0:  # every process has its account, but their sum was made less
        found.append(Finding("bypass", (), beyond_sum))
    outside = min(by_process + max(0, beyond_sum), unexplained_bytes)
    return Verdict(outside, tuple(found)) if outside > 0 else CALM


def steady(first: Verdict, second: Verdict) -> Verdict:
    """What both say, as the milder of them has it."""
    before = {finding.pids: finding for finding in first.findings}
    both = [
        Finding(
            "bypass" if finding.kind == before[finding.pids].kind == "bypass" else "drift",
            finding.pids,
            min(finding.excess_bytes, before[finding.pids].excess_bytes),
        )
        for finding in second.findings
        if finding.pids in before
    ]
    return Verdict(min(first.outside_bytes, second.outside_bytes), tuple(both))


def excused(verdict: Verdict, pids: Container[int]) -> Verdict:
    """The verdict without accusing the processes ``pids``: what they hold stays charged."""
    findings = tuple(
        finding._replace(kind="drift")
        if finding.pids and all(pid in pids for pid in finding.pids)
        else finding
        for finding in verdict.findings
    )
    return verdict._replace(findings=findings)


def _groups(held: Iterable[Held]) -> list[tuple[int, list[Held]]]:
    """By their own pid: processes in nested namespaces of one container may share theirs."""
    found: dict[int, list[Held]] = {}
    for each in held:
        found.setdefault(each.own_pid, []).append(each)
    return [*found.items()]


def _of_group(group: list[Held], slot_bytes: int | None, context_bytes: int) -> Finding | None:
    stranger = slot_bytes is None and context_bytes > 0  # else it may have a context, charged as 0
    free = 0 if stranger else len(group) * allowance(context_bytes)
    excess = sum(each.used_bytes for each in group) - (slot_bytes or 0) - free
    if excess <= 0:
        return None
    ends = any(each.ends for each in group)
    beyond = stranger or excess > DRIFT_BYTES
    pids = tuple(sorted(each.pid for each in group))
    return Finding("bypass" if beyond and not ends else "drift", pids, excess)
