"""Launch a kernel by Numba, ten times and a synchronisation, for ever."""

import numpy as np
from numba import cuda


@cuda.jit
def double(values):  # noqa: ANN001, ANN201
    i = cuda.grid(1)
    if i < values.size:
        values[i] *= 2


values = cuda.to_device(np.ones(32, dtype=np.float32))
while True:
    for _ in range(10):
        double[1, 32](values)
    cuda.synchronize()
