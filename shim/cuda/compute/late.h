/* What does not end when it should. Under the lock. */
#ifndef CGPU_CUDA_LATE_H
#define CGPU_CUDA_LATE_H

#include "compute/flow.h"

#define CGPU_LATE_STAYS_NS UINT64_C(1000000000) /* no work has ended for this long */

/* Whether the driver says that all in HANDLE has ended. A stream that captures is not asked. */
bool cgpu_late_has_ended(const struct cgpu_flow_context *context, CUstream handle);

/* After a look at all markers of GPU: find streams that go apart or make progress again. */
void cgpu_late_look(struct cgpu_flow_gpu *gpu, uint64_t now);

/* Streams that nobody waits for keep their newest markers only: nothing is learnt from others. */
void cgpu_late_thin_out(struct cgpu_flow_gpu *gpu);

/* Whether STREAM, which has no markers, is in a host function or is about to be. */
bool cgpu_late_called(const struct cgpu_stream *stream, uint64_t now);

/* Whether all work of STREAM is behind a host function that runs or is the next to run. */
bool cgpu_late_at_call(const struct cgpu_stream *stream, uint64_t now);

/* Work of STREAM has ended. */
void cgpu_late_moves(struct cgpu_stream *stream, uint64_t now);

/* Whether nobody waits for the work of STREAM. */
static inline bool
cgpu_late_is_left(const struct cgpu_stream *stream)
{
    return stream->apart == CGPU_APART_CALLED || stream->apart == CGPU_APART_STAYS;
}

/* How many markers belong to work that drains wait for. */
static inline uint32_t
cgpu_late_counted(const struct cgpu_flow_gpu *gpu)
{
    return gpu->flights - gpu->apart;
}

#endif
