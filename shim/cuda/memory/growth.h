/* What a context grows by after it was made. */
#ifndef CGPU_CUDA_GROWTH_H
#define CGPU_CUDA_GROWTH_H

#include "entry/shim.h"
#include "memory/target.h"

/* By the limit that asks for it, or LOCAL: local memory that loaded functions need beyond the stack
 * limit's default. */
enum cgpu_growth { CGPU_GROWTH_STACK = CU_LIMIT_STACK_SIZE, CGPU_GROWTH_LOCAL = 15 };

/*
 * A function that needs BYTES of local memory per thread can be launched in TARGET from now on:
 * charge what the context's local memory buffer will grow by. Does nothing if it is charged
 * already.
 */
CUresult cgpu_growth_local_memory(const struct cgpu_target *target, uint64_t bytes);

/* The same for a kernel that can be launched in every context, those included that come later. */
CUresult cgpu_growth_local_memory_everywhere(uint64_t bytes);

/* CONTEXT on GPU is new: charge it for such kernels. _locked: under the lock of contexts. */
CUresult cgpu_growth_of_context(uint64_t context, int32_t gpu);
CUresult cgpu_growth_of_context_locked(uint64_t context, int32_t gpu);

#endif
