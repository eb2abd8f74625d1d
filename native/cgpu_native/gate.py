"""Gate words (``gate.h``): whether the processes of a container may launch on a GPU now."""

from __future__ import annotations

from cgpu_native._native import lib

CLOSED: int = lib.CGPU_GATE_CLOSED
OPEN: int = lib.CGPU_GATE_OPEN
PRESSED: int = lib.CGPU_GATE_PRESSED
FREE: int = lib.CGPU_GATE_FREE


def extract_state(word: int) -> int:
    """Return the state of a gate word, one of four."""
    return word & int(lib.CGPU_GATE_STATE)


def make_first_word(of: int) -> int:
    """The first gate word of a page, in state ``of``."""
    return int(lib.CGPU_GATE_TURN) | of
