/* Streams for which the table has no room. Under the lock. */
#ifndef CGPU_CUDA_BEYOND_H
#define CGPU_CUDA_BEYOND_H

#include "compute/flow.h"

/* Keep HANDLE, which has no entry in the table or has just lost it. */
void cgpu_beyond_keep(CUstream handle, struct cgpu_flow_context *context);
/* The same for a stream that is about to be given work. */
void cgpu_beyond_keep_used(CUstream handle, struct cgpu_flow_context *context, uint64_t now);
/* HANDLE gets an entry in the table. True: it may have work that was not counted. */
bool cgpu_beyond_forget(CUstream handle);
/* HANDLE is about to be destroyed: nobody can ask it any more. */
void cgpu_beyond_destroy(CUstream handle, uint64_t now);
void cgpu_beyond_drop_context(const struct cgpu_flow_context *context);

/* There may have been uncounted work in any stream on GPU. */
void cgpu_beyond_suspect(struct cgpu_gate_gpu *gpu, uint64_t now);

/* Ask some of those that may have work. */
void cgpu_beyond_look(struct cgpu_gate_gpu *gpu, uint64_t now);

#endif
