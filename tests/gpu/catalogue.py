"""Every check, in the order in which they run."""

from __future__ import annotations

from gpu.check import CHECKS, Check
from gpu.facts import blocks, code, graphs, kinds, memory, symbols, timing, waits
from gpu.limits import driver, host, torch, training
from gpu.shares import alone, resnet_pair, weights, workloads

MODULES = (
    symbols,
    memory,
    blocks,
    code,
    kinds,
    graphs,
    timing,
    waits,
    driver,
    host,
    torch,
    training,
    weights,
    workloads,
    alone,
    resnet_pair,
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
