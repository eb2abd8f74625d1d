/* Who pays for what the current context allocates. */
#ifndef CGPU_CUDA_TARGET_H
#define CGPU_CUDA_TARGET_H

#include "entry/shim.h"

struct cgpu_target {
    int32_t gpu;    /* number in the limits, or CGPU_NO_GPU */
    uint64_t owner; /* context that takes the memory along when it goes */
};

/* GPU and owner for what the current context allocates. Charges a context seen the first time. */
CUresult cgpu_target_current(struct cgpu_target *target);

/* GPU of the current context, whether it can be charged or not. */
CUresult cgpu_target_current_gpu(int32_t *gpu);

/* Make void what threads remember about contexts. */
void cgpu_target_forget(void);

#endif
