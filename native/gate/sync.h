/*
 * What a program's synchronisation shows: what has ended, and whether the program rests.
 *
 * While others wait, a process says that it has nothing to do when that has been so for
 * CGPU_PACE_IDLE_NS. A program that rests synchronises, does something else, and launches again. If
 * its rests are usually longer than that, it says so when one begins, or a little before the end of
 * the work for which a thread waits (drain.c).
 */
#ifndef CGPU_SYNC_H
#define CGPU_SYNC_H

#include "gate/state.h"

/* What STREAM was marked for by BEGUN has ended; the rest too, if none was handed over since. */
void cgpu_sync_stream(struct cgpu_stream *stream, uint64_t begun, uint64_t now);

/* Something was synchronised, and GPU's markers have been checked: a rest may begin. */
void cgpu_sync_begin_rest(struct cgpu_gate_gpu *gpu, uint64_t now);

#endif
