"""Every check, in the order in which they run."""

from __future__ import annotations

from bench.gpu import (
    facts_blocks,
    facts_code,
    facts_kinds,
    facts_memory,
    facts_symbols,
    facts_timing,
    facts_waits,
    limits_driver,
    limits_host,
    limits_torch,
    limits_training,
    shares,
    shares_alone,
    shares_resnet,
)
from bench.gpu.check import CHECKS, Check

MODULES = (
    facts_symbols,
    facts_memory,
    facts_blocks,
    facts_code,
    facts_kinds,
    facts_timing,
    facts_waits,
    limits_driver,
    limits_host,
    limits_torch,
    limits_training,
    shares,
    shares_alone,
    shares_resnet,
)


def find(name: str) -> Check:
    """The check with this name.

    Raises:
        LookupError: there is none.
    """
    for check in CHECKS:
        if check.name == name:
            return check
    raise LookupError(f"no check is called {name}")


def of_part(part: str) -> list[Check]:
    """The checks of ``facts``, ``limits`` or ``shares``."""
    return [check for check in CHECKS if check.part == part]
