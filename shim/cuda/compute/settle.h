/* What the program's own synchronisation and destruction tell. Called by the hooks. */
#ifndef CGPU_CUDA_SETTLE_H
#define CGPU_CUDA_SETTLE_H

#include "compute/flow.h"

/* 0: nothing is metered, no need to call the others. */
uint64_t cgpu_settle_begin(void);
void cgpu_settle_stream(CUstream stream, uint64_t begun);
void cgpu_settle_context(CUcontext context, uint64_t begun);

/* STREAM is about to go. */
void cgpu_settle_stream_going(CUstream stream);

/* CONTEXT may go in the call that follows; it is still there; it is gone. */
void cgpu_settle_context_going(CUcontext context);
void cgpu_settle_context_stays(CUcontext context);
void cgpu_settle_context_gone(CUcontext context);

#endif
