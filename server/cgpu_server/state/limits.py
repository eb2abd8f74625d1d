"""The limits of containers, even of those whose limits cannot be opened."""

from __future__ import annotations

from collections.abc import Sequence

import cgpu_native
from cgpu_node.shares.record import Record


def limits_of(record: Record) -> Sequence[cgpu_native.LimitsGpu]:
    """Return a container's limits; those in its record if a lease prevents opening them."""
    try:
        return cgpu_native.read_limits(f"{record.directory}/limits").gpus
    except BlockingIOError:
        shares = record.gpus
        return [cgpu_native.LimitsGpu(gpu.uuid, gpu.index, gpu.cap_bytes, 0) for gpu in shares]
    except (OSError, cgpu_native.NativeError):  # it is ending
        return ()


def is_measured(record: Record, number: int) -> bool:
    """Whether an arbiter measures the container's time on this one of its GPUs."""
    gpus = limits_of(record)
    return number < len(gpus) and bool(gpus[number].metered)


def charge_outside(tenant: tuple[str, int], gpu: cgpu_native.LimitsGpu, outside_bytes: int) -> bool:
    """Count these bytes as used. False: the limits cannot be written."""
    if gpu.outside_bytes != outside_bytes:
        directory, number = tenant
        try:
            cgpu_native.set_bytes(f"{directory}/limits", number, "outside_bytes", outside_bytes)
        except OSError:  # it is ending, or keeps its limits from us
            return False
    return True
