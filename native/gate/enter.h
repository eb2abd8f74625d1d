/* Whether a launch may go, and how far ahead a stream is launched. */
#ifndef CGPU_ENTER_H
#define CGPU_ENTER_H

#include "gate/state.h"

/* Note that the program's rest is over: a thread is about to launch, or to wait at the gate. */
void cgpu_enter_end_rest(struct cgpu_gate_gpu *gpu, uint64_t now);

/*
 * Publish that STREAM's GPU may have work under the gate WORD, then check that the gate still has
 * this word. The arbiter closes the gate first and then reads what is published, so one of the two
 * sees the other's change. False: the word has changed.
 */
bool cgpu_enter_begin(struct cgpu_stream *stream, uint32_t word, uint64_t now);

/*
 * Whether a launch of NS (0: its length is unknown) may go into STREAM under the metered gate WORD.
 * Returns 0 if so, otherwise when to ask again. This also checks the GPU's markers, and ends a full
 * batch with a marker if the stream may have one more.
 */
uint64_t cgpu_enter_room(struct cgpu_stream *stream, uint32_t word, uint64_t ns, uint64_t now);

/*
 * How much a thread may launch into STREAM under the metered gate WORD before it asks again. While
 * others wait, all threads and streams together launch about one batch before one of them asks.
 */
uint64_t cgpu_enter_batch_limit(const struct cgpu_stream *stream, uint32_t word);

/*
 * Count a launch of NS that goes now (GUESSED: guess.h guessed NS). It joins the batch of STREAM,
 * or begins it.
 */
void cgpu_enter_count(struct cgpu_stream *stream, uint64_t ns, bool guessed, uint64_t now);

#endif
