/* What the program's own synchronisation and destruction show. Called by the hooks. */
#ifndef CGPU_CUDA_FOLLOW_H
#define CGPU_CUDA_FOLLOW_H

#include "compute/launch_state.h"

/*
 * Called before a driver call that synchronises. Returns the time; 0: nothing is metered. Until
 * cgpu_follow_end, the monitor assumes that the thread waits for its work.
 */
uint64_t cgpu_follow_begin(void);
void cgpu_follow_end(uint64_t begun);

/* A call that began at BEGUN has waited for all work of the stream HANDLE (NULL: of CONTEXT). */
void cgpu_follow_synchronised(CUstream handle, CUcontext context, uint64_t begun);

/*
 * A call that began at BEGUN has waited for an event, which does not show what work has ended. If
 * others wait for the GPU, ask the driver whether all work on it has.
 */
void cgpu_follow_event(uint64_t begun);

/* Note that the driver is about to destroy STREAM. */
void cgpu_follow_stream_going(CUstream stream);

/*
 * A driver call may destroy CONTEXT. Call going before it, with GOING. After it, call gone, or, if
 * CONTEXT still exists, going without GOING.
 */
void cgpu_follow_context_going(CUcontext context, bool going);
void cgpu_follow_context_gone(CUcontext context);

#endif
