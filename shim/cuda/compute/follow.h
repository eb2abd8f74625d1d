/* What the program's own synchronisation and destruction show. Called by the hooks. */
#ifndef CGPU_CUDA_FOLLOW_H
#define CGPU_CUDA_FOLLOW_H

#include "compute/launch_state.h"

/*
 * A call of the driver that synchronises begins. Returns the time; 0: nothing is metered. Until it
 * ends, the monitor takes the thread to be waiting for its work.
 */
uint64_t cgpu_follow_begin(void);
void cgpu_follow_end(uint64_t begun);

/* A call that began at BEGUN has waited for all of the stream HANDLE; NULL: for all of CONTEXT. */
void cgpu_follow_synchronised(CUstream handle, CUcontext context, uint64_t begun);

/*
 * The same for an event: nobody knows what it stood for. If others wait for the GPU, ask the driver
 * whether that was everything.
 */
void cgpu_follow_event(uint64_t begun);

/* STREAM is about to go. */
void cgpu_follow_stream_going(CUstream stream);

/*
 * The driver call that follows may destroy CONTEXT; or it still exists, not GOING; or it is gone.
 */
void cgpu_follow_context_going(CUcontext context, bool going);
void cgpu_follow_context_gone(CUcontext context);

#endif
