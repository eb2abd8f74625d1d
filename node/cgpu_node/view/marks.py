"""Marks of containers that keep the host from reading what they hold.

A mark says what such a container did to its own files, and is shown wherever containers are. The
container keeps its limits, and nobody else waits for it.
"""

from __future__ import annotations

LOCKS, LEASE, RUINED = "locks", "lease", "ruined"

SENTENCES = {
    LOCKS: "it holds so many locks on its ledger that asking which of its processes live takes too"
    " long: memory of those that have exited still counts as used",
    LEASE: "a process holds a lease on its limits or its ledger, which therefore cannot be opened:"
    " its memory use is not known",
    RUINED: "its ledger is ruined, or another release made it: its memory use is not known",
}
"""Mark -> what it means; ``docs/operating.md`` says what to do."""


def from_error(error: Exception) -> str | None:
    """Return the mark of a container whose file could not be read; None if it is ending."""
    if isinstance(error, BlockingIOError):
        return LEASE
    return None if isinstance(error, FileNotFoundError) else RUINED
