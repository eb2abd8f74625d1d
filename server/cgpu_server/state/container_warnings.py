"""Logs containers with costly or large ledgers, and those that state a wrong size of a GPU."""

from __future__ import annotations

from collections.abc import Iterable

import cgpu_native
from cgpu_node.shares import record
from cgpu_node.shares.record import Record
from cgpu_server.journal import log

_ADVICE = (
    "end the container: no ordinary program takes such locks; its cap holds, nobody waits for it,"
    " and memory of its processes that have exited still counts as used"
)
_LARGE = (
    "end the container: no ordinary program makes its ledger larger; each second it is cut back, so"
    " that it does not fill the file system of the state directory"
)
_MEANT = (
    "nothing if it is meant so; else start the container with the GPU's size as the whole, or cgpu"
    " set its memsize"
)


def log_misstated(container: str, notes: Iterable[str]) -> None:
    """Log that a container asked for a part of a stated whole that is not the GPU's size."""
    for note in notes:
        log.warning("whole_misstated", container=container, note=note, do=_MEANT)


class ContainerWarnings:
    """Logs each container with too many locks once, and again after a minute without them.

    Ledgers that were made larger are cut back to the size of their format.
    """

    def __init__(self) -> None:
        self._logged: set[str] = set()
        self._cut: set[str] = set()
        self._seen: set[str] = set()

    def log(self, records: Iterable[Record]) -> None:
        """Log each finding about a container once, and cut large ledgers."""
        records = tuple(records)
        for entry in records:
            if entry.directory not in self._seen:
                log_misstated(entry.id, record.read_notes(entry.directory))
        self._seen = {entry.directory for entry in records}
        costly = {
            r.directory: r.id for r in records if cgpu_native.is_costly(f"{r.directory}/ledger")
        }
        for directory in costly.keys() - self._logged:
            log.warning("locks_without_end", container=costly[directory], do=_ADVICE)
        self._logged = set(costly)
        for entry in records:
            if _cut_ledger(entry) and entry.directory not in self._cut:
                self._cut.add(entry.directory)
                log.warning("ledger_cut", container=entry.id, do=_LARGE)
        self._cut &= self._seen


def _cut_ledger(entry: Record) -> bool:
    """Cut the ledger if it is larger than its format, and return whether it was.

    The format of another release is unknown here, so ledgers of other releases are left alone.
    """
    try:
        head = cgpu_native.read_head(f"{entry.directory}/limits")
        is_ours = head is not None and head.version == cgpu_native.LIMITS_VERSION
        return is_ours and cgpu_native.cut_ledger(f"{entry.directory}/ledger")
    except (OSError, cgpu_native.NativeError):  # it ends just now, or holds a lease on it
        return False
