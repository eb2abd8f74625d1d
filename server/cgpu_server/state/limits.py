"""The limits pages of containers, also of those whose page cannot be opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cgpu_native
from cgpu_node.view import marks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cgpu_node.shares.record import Record


def pages_of(record: Record) -> tuple[Sequence[cgpu_native.LimitsGpu], str | None]:
    """Its limits and None; if its page cannot be opened, what it was promised, and the mark."""
    try:
        return cgpu_native.read_limits(f"{record.directory}/limits").gpus, None
    except BlockingIOError as error:
        its = [
            cgpu_native.LimitsGpu(gpu.uuid, gpu.index, gpu.memory_bytes, 0) for gpu in record.gpus
        ]
        return its, marks.of(error)
    except (OSError, cgpu_native.NativeError):  # it is ending
        return (), None


def is_measured(record: Record, place: int) -> bool:
    """Whether its arbiter keeps what it has of that GPU's time."""
    pages, _ = pages_of(record)
    return place < len(pages) and bool(pages[place].metered)
