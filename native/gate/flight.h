/* Markers in flight on a GPU: which have passed, and which streams stall. */
#ifndef CGPU_FLIGHT_H
#define CGPU_FLIGHT_H

#include "gate/state.h"

/* End STREAM's batch with a marker. False: nothing was done, because too many are in flight. */
bool cgpu_flight_cut(struct cgpu_stream *stream, uint64_t now);

/* When WORD's turn begins and nobody has work on the GPU: measure the lag with a marker alone. */
void cgpu_flight_probe(struct cgpu_stream *stream, uint32_t word, uint64_t now);

/* Note that all work of STREAM that was marked until UNTIL has ended. SEEN: how that was seen. */
void cgpu_flight_pass(struct cgpu_stream *stream, uint64_t until, uint64_t now,
                      enum cgpu_pace_seen seen);

/* Note that BATCH, which was in flight on GPU, has ended. SEEN: how that was seen. */
void cgpu_flight_end(struct cgpu_gate_gpu *gpu, const struct cgpu_pace_batch *batch, uint64_t now,
                     enum cgpu_pace_seen seen);

/* Find the markers of GPU that have passed, and the streams that stall or make progress again. */
void cgpu_flight_harvest(struct cgpu_gate_gpu *gpu, uint64_t now);

#endif
