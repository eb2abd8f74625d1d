/* What native/gate needs of the driver and of the process's threads. */
#ifndef CGPU_CUDA_OUTSIDE_H
#define CGPU_CUDA_OUTSIDE_H

#include "compute/flow.h"

/* A context of GPU is known: native/gate may look at its streams. */
void cgpu_outside_begin(struct cgpu_gate_gpu *gpu);

#endif
