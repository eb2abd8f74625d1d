/* Batches: placing markers, seeing them passed. Under the lock. */
#ifndef CGPU_CUDA_MARKER_H
#define CGPU_CUDA_MARKER_H

#include "compute/flow.h"

/* Does STREAM have work that no marker covers? */
bool cgpu_marker_wanted(const struct cgpu_stream *stream);

/* The launches in STREAM that no marker covers, those that lanes have summed up included. */
void cgpu_marker_sum(const struct cgpu_stream *stream, struct cgpu_unmarked *sum);

/* Does it capture? Also if the driver does not say, as then nothing can be put into it. */
bool cgpu_marker_captures(const struct cgpu_stream *stream);
bool cgpu_marker_captures_into(CUstream handle);

/* Are its markers put into the legacy stream? */
bool cgpu_marker_is_by_legacy(const struct cgpu_stream *stream);

/* Whether one more marker may be put in flight. */
bool cgpu_marker_has_room(struct cgpu_flow_gpu *gpu, uint64_t now);

/* Whether STREAM gets no more markers before one is passed: see CGPU_STREAM_MARKERS. */
static inline bool
cgpu_marker_is_enough(const struct cgpu_stream *stream)
{
    return stream->in_flight >= CGPU_STREAM_MARKERS;
}

/* End STREAM's batch by a marker. False: too many are in flight, nothing was done. */
bool cgpu_marker_cut(struct cgpu_stream *stream, uint64_t now);
/* Measure the lag by a marker alone, if nobody has work on the GPU as WORD's turn begins. */
void cgpu_marker_probe(struct cgpu_stream *stream, uint32_t word, uint64_t now);

/* The same, the batch having ended already. */
void cgpu_marker_ended(struct cgpu_stream *stream, uint64_t now);
/* The batch was captured: it is no work. */
void cgpu_marker_forget(struct cgpu_stream *stream);

bool cgpu_marker_was_passed(const struct cgpu_flight *flight);

/* Find markers of GPU that have been passed, and streams that make no progress. */
void cgpu_marker_harvest(struct cgpu_flow_gpu *gpu, uint64_t now);

/* What was marked in STREAM (NULL: in all streams of CONTEXT) until UNTIL has ended; KNOWN: now. */
void cgpu_marker_pass(const struct cgpu_stream *stream, const struct cgpu_flow_context *context,
                      uint64_t until, uint64_t now, bool known);

/* Tell the arbiter what is in flight. */
void cgpu_marker_publish(struct cgpu_flow_gpu *gpu);

/* Our own driver calls in CONTEXT, which is made current if need be. */
struct cgpu_visit {
    bool pushed;
    int mode;
};
bool cgpu_marker_visit(const struct cgpu_flow_context *context, struct cgpu_visit *visit);
void cgpu_marker_leave(const struct cgpu_visit *visit);

#endif
