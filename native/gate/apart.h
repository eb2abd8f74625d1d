/* Streams whose work does not end when it should. */
#ifndef CGPU_APART_H
#define CGPU_APART_H

#include "gate/state.h"

/* After a check of all markers of GPU: find streams that go apart or make progress again. */
void cgpu_apart_look(struct cgpu_gate_gpu *gpu, uint64_t now);

/* STREAM is apart from NOW on, because of WHY; it may have been before, for another reason. */
void cgpu_apart_go(struct cgpu_stream *stream, enum cgpu_apart why, uint64_t now);

/* Work of STREAM has ended. */
void cgpu_apart_moves(struct cgpu_stream *stream, uint64_t now);

/* Whether STREAM, which has no markers, is in a host function or is about to be. */
bool cgpu_apart_is_called(const struct cgpu_stream *stream, uint64_t now);

/* Whether all work of STREAM is behind a host function that runs or is the next to run. */
bool cgpu_apart_is_behind_call(const struct cgpu_stream *stream, uint64_t now);

/* Whether nobody waits for the work of STREAM. */
static inline bool
cgpu_apart_is_left(const struct cgpu_stream *stream)
{
    return stream->apart == CGPU_APART_CALLED || stream->apart == CGPU_APART_STAYS;
}

#endif
