/* Linear memory that was freed in a stream. */
#ifndef CGPU_CUDA_ASYNC_FREE_H
#define CGPU_CUDA_ASYNC_FREE_H

#include "entry/shim.h"

/* Give back what was freed in STREAM or in any stream of CONTEXT, which was synchronised. */
void cgpu_async_free_collect(CUstream stream, CUcontext context);

/* Give back what was freed in any stream of CONTEXT, and all memory that CONTEXT owns. */
void cgpu_async_free_context_gone(CUcontext context);

/*
 * Before a refusal on GPU: synchronise the streams of the current context whose work has ended.
 * Then what was freed in them goes back, even if the program itself waits by other means (an event,
 * a flag).
 */
void cgpu_async_free_finish(int32_t gpu);

/*
 * Destroy STREAM with DESTROY while no thread queries it. What was freed in it goes back now if its
 * work has ended, otherwise when its context is synchronised.
 */
CUresult cgpu_async_free_destroy(CUresult (*destroy)(CUstream), CUstream stream);

#endif
