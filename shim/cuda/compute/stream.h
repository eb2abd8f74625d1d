/* Contexts and streams, by their handles. Under the lock. */
#ifndef CGPU_CUDA_STREAM_H
#define CGPU_CUDA_STREAM_H

#include "compute/launch_state.h"

_Static_assert((int)CGPU_MAX_CONTEXTS == 512 && (int)CGPU_MAX_STREAMS == 8192, "in the sentence");
#define CGPU_STREAM_TOO_MANY "the process has 512 contexts or 8,192 streams already; destroy some"

/* CONTEXT's entry; NULL: it has none. */
struct cgpu_context_entry *cgpu_stream_context(CUcontext context);

/* Remove CONTEXT and all its streams. Nothing of it is in flight any more. */
void cgpu_stream_drop_context(struct cgpu_context_entry *context);

/*
 * HANDLE's entry; for a default stream, the entry of CONTEXT's and the calling thread's one. NULL:
 * there is none.
 */
struct cgpu_stream *cgpu_stream_find(CUstream handle, CUcontext context);
/*
 * Find HANDLE's entry, or create it. False: there are more contexts or streams than the tables
 * hold. *OUT is NULL if the driver knows no such stream, or its GPU is not one of the container's.
 */
bool cgpu_stream_ensure(CUstream handle, CUcontext current, struct cgpu_stream **out);
/*
 * HANDLE's entry in the current context, which is created if there is none; NULL as in both cases
 * above.
 */
struct cgpu_stream *cgpu_stream_ensure_current(CUstream handle);
/*
 * Whether all known contexts are on GPU. A launch may go into a stream of any context, whichever is
 * current. So only then does GPU's free gate allow launches into every stream.
 */
bool cgpu_stream_all_on(const struct cgpu_gate_gpu *gpu);
/* detach: the handle is gone. release: free the entry when nothing of the stream is in flight. */
void cgpu_stream_detach(struct cgpu_stream *stream);
void cgpu_stream_release(struct cgpu_stream *stream);
/*
 * The thread of SLOT has ended, and with it its default streams: give SLOT to the thread TID. If
 * those streams have work, the monitor marks what is unmarked.
 */
void cgpu_stream_drop_thread(struct cgpu_batch_slot *slot, uint32_t tid, uint64_t now);
/* Do the same for all threads that have ended, but give their slots to nobody. */
void cgpu_stream_sweep(uint64_t now);
/* Whether STREAM, which the calling thread may name, captures. */
bool cgpu_stream_is_capturing(struct cgpu_stream *stream);

static inline CUcontext
cgpu_context_current(void)
{
    CUcontext current = NULL;
    cgpu_real.cuCtxGetCurrent(&current);
    return current;
}

static inline struct cgpu_context_entry *
cgpu_stream_owner(const struct cgpu_stream *stream)
{
    return &cgpu_launch_state->contexts[stream->context];
}

#endif
