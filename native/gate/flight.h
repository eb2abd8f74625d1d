/* Batches and their markers: what is in flight on a GPU, and what has no marker yet. */
#ifndef CGPU_FLIGHT_H
#define CGPU_FLIGHT_H

#include "gate/state.h"

/* Add one or more launches of BATCH's kind to STREAM's batch, without a marker. */
void cgpu_flight_add(struct cgpu_stream *stream, const struct cgpu_unmarked *batch);

/* STREAM's batch holds NS of work that takes room and has no marker; 0: there is no batch. */
void cgpu_flight_open(struct cgpu_stream *stream, uint64_t ns);

/* STREAM may have work that was not counted. */
void cgpu_flight_suspect(struct cgpu_stream *stream);

/* The launches in STREAM that no marker covers, those that threads hold included. */
struct cgpu_unmarked cgpu_flight_unmarked(const struct cgpu_stream *stream);

/* Does STREAM have work that no marker covers? */
bool cgpu_flight_wants_marker(const struct cgpu_stream *stream);

/* Whether STREAM gets no more markers before one has passed: see CGPU_STREAM_MARKERS. */
static inline bool
cgpu_flight_is_enough(const struct cgpu_stream *stream)
{
    return stream->in_flight >= CGPU_STREAM_MARKERS;
}

/* Is work in flight that the arbiter should wait for? */
static inline bool
cgpu_flight_is_busy(const struct cgpu_gate_gpu *gpu)
{
    return gpu->flights != gpu->left;
}

/* End STREAM's batch with a marker. False: too many are in flight, nothing was done. */
bool cgpu_flight_cut(struct cgpu_stream *stream, uint64_t now);

/* Measure the lag with a lone marker, if nobody has work on the GPU when WORD's turn begins. */
void cgpu_flight_probe(struct cgpu_stream *stream, uint32_t word, uint64_t now);

/* What was marked in STREAM until UNTIL has ended; KNOWN: now. */
void cgpu_flight_pass(struct cgpu_stream *stream, uint64_t until, uint64_t now,
                      enum cgpu_pace_seen seen);

/* What STREAM was marked for by BEGUN has ended; the rest too, if none was handed over since. */
void cgpu_flight_synchronised(struct cgpu_stream *stream, uint64_t begun, uint64_t now);

/* Find markers of GPU that have passed, and streams that make no progress. */
void cgpu_flight_harvest(struct cgpu_gate_gpu *gpu, uint64_t now);

/* Tell the arbiter what is in flight. */
void cgpu_flight_publish(struct cgpu_gate_gpu *gpu);

#endif
