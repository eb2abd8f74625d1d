"""Reads ledgers. Containers can write to them, so a ledger counts up to what was promised."""

from __future__ import annotations

import os
from collections.abc import Iterable

import cgpu_native
from cgpu_node.shares.record import Record
from cgpu_server.audit.verdict import LedgerAccount, Tenant, bound_account


def read_accounts(records: Iterable[Record]) -> dict[Tenant, LedgerAccount]:
    """Return the accounts in their ledgers; empty for a ledger that its container has ruined."""
    return {key: each for record in records for key, each in _read_ledger(record).items()}


def _read_ledger(record: Record) -> dict[Tenant, LedgerAccount]:
    found: dict[Tenant, LedgerAccount] = {}
    try:
        with cgpu_native.Ledger.observe(f"{record.directory}/ledger") as ledger:
            look = ledger.look()
            everyone = dict.fromkeys((each.pid for each in look.list_processes()), 0)
            for number, gpu in enumerate(record.gpus):
                slots = {**everyone}
                for each in look.list_processes(number):
                    slots[each.pid] += each.used_bytes
                account = LedgerAccount(
                    ledger.read_total(number),
                    slots,
                    look.read_shared(number),
                    *look.read_imports(number),
                )
                # no proxy charges more than was promised, even if the ledger shows more
                found[record.directory, number] = bound_account(account, gpu.cap_bytes)
    except (OSError, cgpu_native.NativeError):
        if os.path.exists(f"{record.directory}/limits"):  # else it is ending
            return {(record.directory, n): LedgerAccount(0, {}) for n in range(len(record.gpus))}
    return found
