"""The limits of containers, including those whose limits cannot be opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cgpu_native
from cgpu_node.view import marks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cgpu_node.shares.record import Record


def limits_of(record: Record) -> tuple[Sequence[cgpu_native.LimitsGpu], str | None]:
    """A container's limits and None; if they cannot be opened, its record's, and the mark."""
    try:
        return cgpu_native.read_limits(f"{record.directory}/limits").gpus, None
    except BlockingIOError as error:
        recorded = [
            cgpu_native.LimitsGpu(gpu.uuid, gpu.index, gpu.cap_bytes, 0) for gpu in record.gpus
        ]
        return recorded, marks.from_error(error)
    except (OSError, cgpu_native.NativeError):  # it is ending
        return (), None


def is_measured(record: Record, number: int) -> bool:
    """Whether an arbiter measures the time that the container has of this one of its GPUs."""
    gpus, _ = limits_of(record)
    return number < len(gpus) and bool(gpus[number].metered)


def charge_outside(
    record: Record, number: int, gpu: cgpu_native.LimitsGpu, outside_bytes: int
) -> bool:
    """Count these bytes as used; False if the limits cannot be written."""
    if gpu.outside_bytes != outside_bytes:
        path = f"{record.directory}/limits"
        try:
            cgpu_native.set_bytes(path, number, "outside_bytes", outside_bytes)
        except OSError:  # it is ending, or keeps its limits from us
            return False
    return True
