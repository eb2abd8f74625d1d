/* What the program's own synchronisation and destruction tell. Called by the hooks. */
#ifndef CGPU_CUDA_FOLLOW_H
#define CGPU_CUDA_FOLLOW_H

#include "compute/flow.h"

/* 0: nothing is metered, no need to call the others. */
uint64_t cgpu_follow_begin(void);
void cgpu_follow_stream(CUstream stream, uint64_t begun);
void cgpu_follow_context(CUcontext context, uint64_t begun);

/* STREAM is about to go. */
void cgpu_follow_stream_going(CUstream stream);

/* CONTEXT may go in the call that follows; or is still there, not GOING; or is gone. */
void cgpu_follow_context_going(CUcontext context, bool going);
void cgpu_follow_context_gone(CUcontext context);

#endif
