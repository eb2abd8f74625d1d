"""A Numba program: compile and launch a kernel, then make arrays until Numba reports no memory."""

from __future__ import annotations

import json

import numpy as np
from numba import cuda

CHUNK = 256 << 20


@cuda.jit
def double(values):  # noqa: ANN001, ANN201
    i = cuda.grid(1)
    if i < values.size:
        values[i] *= 2


def main() -> None:
    free, total = cuda.current_context().get_memory_info()
    double[1, 32](cuda.to_device(np.ones(32, dtype=np.float32)))
    cuda.synchronize()
    arrays = []
    try:
        while True:
            arrays.append(cuda.device_array(CHUNK, dtype=np.uint8))
    except Exception as error:  # noqa: BLE001 - which one is what the test asks
        refusal = f"{type(error).__name__}: {error}"
    report = {"free": free, "total": total, "taken": len(arrays) * CHUNK, "refusal": refusal}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
