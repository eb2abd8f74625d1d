"""How much the scheduler works for an answer, counted in calls: a timing varies."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


def count_calls(act: Callable[[], object]) -> int:
    """How many functions of the product are called, or call others, meanwhile."""
    calls = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"} and "cgpu_k8s" in frame.f_code.co_filename

    sys.setprofile(count)
    act()
    sys.setprofile(None)
    return calls
