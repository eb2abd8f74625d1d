/* Contexts and streams, by their handles. Under the lock. */
#ifndef CGPU_CUDA_STREAM_H
#define CGPU_CUDA_STREAM_H

#include "compute/flow.h"

/* CONTEXT's entry; NULL: not there. */
struct cgpu_flow_context *cgpu_stream_context(CUcontext context);

enum cgpu_stream_of {
    CGPU_STREAM_OF_OURS,
    CGPU_STREAM_OF_NONE, /* the driver knows none, or its GPU is none of the container's */
    CGPU_STREAM_OF_MORE  /* there are more contexts or streams than the tables hold */
};

/* The entry of the context that STREAM is of, made if need be. */
enum cgpu_stream_of cgpu_stream_of(CUstream stream, CUcontext current,
                                   struct cgpu_flow_context **out);
void cgpu_stream_drop_context(struct cgpu_flow_context *context);

/* HANDLE's entry; for the default streams that of CONTEXT, and of LANE. NULL: not there, full. */
struct cgpu_stream *cgpu_stream_find(CUstream handle, CUcontext context, struct cgpu_lane *lane);
struct cgpu_stream *cgpu_stream_add(CUstream handle, struct cgpu_flow_context *context,
                                    struct cgpu_lane *lane);
/* HANDLE's entry, created if need be. */
enum cgpu_stream_of cgpu_stream_meet(CUstream handle, CUcontext current, struct cgpu_lane *lane,
                                     struct cgpu_stream **out);
/* HANDLE's own entry in the calling thread, created if need be. NULL: there is none. */
struct cgpu_stream *cgpu_stream_own(CUstream handle);
/*
 * Whether all known contexts are on GPU. A launch may go into a stream of any context, whichever is
 * current, so only then does GPU's free gate let launches into every stream.
 */
bool cgpu_stream_all_on(const struct cgpu_gate_gpu *gpu);
/* The handle is gone; the entry goes when nothing of it is in flight. */
void cgpu_stream_detach(struct cgpu_stream *stream);
void cgpu_stream_release(struct cgpu_stream *stream);

static inline CUcontext
cgpu_context_current(void)
{
    CUcontext current = NULL;
    cgpu_real.cuCtxGetCurrent(&current);
    return current;
}

static inline struct cgpu_flow_context *
cgpu_stream_owner(const struct cgpu_stream *stream)
{
    return &cgpu_flow->contexts[stream->context];
}

#endif
