"""Take device memory through NVIDIA's own bindings until the driver refuses; say what happened.

``driver_api.py CHUNK_MIB [HOLD [COUNT]]``: one line of JSON; with HOLD, keep the memory until
killed; with COUNT, begin when as many such programs have a context.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from cuda.bindings import driver

MIB = 1 << 20


def call(result: tuple[Any, ...]) -> Any:
    """The value of a driver call, or the end of the program if it failed."""
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        sys.exit(f"{status.name}")
    return values[0] if values else None


def take(chunk: int) -> tuple[int, str]:
    """Allocate until refused: the bytes taken and the name of the refusal."""
    taken = 0
    while True:
        status, _ = driver.cuMemAlloc(chunk)
        if status != driver.CUresult.CUDA_SUCCESS:
            return taken, status.name
        taken += chunk


def meet(count: int) -> None:
    """Wait for ``count`` programs of this container to come here."""
    Path(f"/tmp/ready-{os.getpid()}").touch()
    while len(list(Path("/tmp").glob("ready-*"))) < count:
        time.sleep(0.01)


def main() -> None:
    call(driver.cuInit(0))
    device = call(driver.cuDeviceGet(0))
    total = call(driver.cuDeviceTotalMem(device))
    context = call(driver.cuDevicePrimaryCtxRetain(device))
    call(driver.cuCtxSetCurrent(context))
    status, free_before, seen = driver.cuMemGetInfo()
    if len(sys.argv) > 3:
        meet(int(sys.argv[3]))
    taken, refusal = take(int(sys.argv[1]) * MIB)
    status, free_after, _ = driver.cuMemGetInfo()
    assert status == driver.CUresult.CUDA_SUCCESS
    report = {
        "total": total,
        "seen": seen,
        "free_before": free_before,
        "free_after": free_after,
        "taken": taken,
        "refusal": refusal,
    }
    print(json.dumps(report), flush=True)
    if len(sys.argv) > 2:
        signal.pause()


if __name__ == "__main__":
    main()
