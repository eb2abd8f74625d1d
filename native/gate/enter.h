/* May a launch go, and how far a stream is launched ahead. */
#ifndef CGPU_ENTER_H
#define CGPU_ENTER_H

#include "gate/state.h"

/*
 * Say that GPU of STREAM may have work under the gate WORD, then look whether it is still that: the
 * arbiter does it the other way round, so one of the two sees the other. False: it is not.
 */
bool cgpu_enter_begin(struct cgpu_stream *stream, uint32_t word, uint64_t now);

/* Whether BATCH of STREAM ends before a launch of NS; 0: nobody knows how long that takes. */
bool cgpu_enter_ends_batch(const struct cgpu_stream *stream, const struct cgpu_unmarked *batch,
                           uint64_t ns);

/*
 * May a launch of NS go into STREAM, which has BATCH, under the metered gate WORD? 0: yes, else
 * when to look again. Ends BATCH by a marker if it is FULL and the stream may have one more.
 */
uint64_t cgpu_enter_room(struct cgpu_stream *stream, uint32_t word,
                         const struct cgpu_unmarked *batch, bool full, uint64_t ns, uint64_t now);

/* A launch of NS goes: it joins the batch of STREAM, or begins it. */
void cgpu_enter_count(struct cgpu_stream *stream, uint64_t ns, uint64_t now);

#endif
