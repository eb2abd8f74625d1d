"""Kernel lengths, as people write them."""

from __future__ import annotations

LENGTHS_US = (5, 50, 500, 5_000, 50_000, 200_000)


def length_text(length_us: float) -> str:
    """Such as ``5 us`` or ``200 ms``."""
    return f"{length_us / 1000:g} ms" if length_us >= 1000 else f"{length_us:g} us"
