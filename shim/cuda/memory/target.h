/* Who pays for what the current context allocates. */
#ifndef CGPU_CUDA_TARGET_H
#define CGPU_CUDA_TARGET_H

#include "entry/shim.h"

struct cgpu_target {
    int32_t gpu;    /* number in the limits, or CGPU_NO_GPU */
    uint64_t owner; /* context that takes the memory along when it goes */
};

/*
 * The GPU and the owner of what the current context allocates. A context seen for the first time is
 * charged.
 */
CUresult cgpu_target_current(struct cgpu_target *target);

/* The GPU of the current context, even if it cannot be charged. */
CUresult cgpu_target_current_gpu(int32_t *gpu);

/* Make void what threads remember about contexts. */
void cgpu_target_forget(void);

#endif
