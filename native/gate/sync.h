/*
 * What a program's synchronisation shows: what has ended, and whether the program rests.
 *
 * While others wait, a process reports that it has nothing to do once that has been so for
 * CGPU_PACE_IDLE_NS. A program that rests synchronises, does something else, and launches again. If
 * its rests are usually longer than that, it reports a rest when it begins, or a little before the
 * end of the work for which a thread waits (drain.c).
 */
#ifndef CGPU_SYNC_H
#define CGPU_SYNC_H

#include "gate/state.h"

/*
 * Note that all work of STREAM that was marked until BEGUN has ended. If no launch was handed over
 * since, all other work of STREAM has ended too.
 */
void cgpu_sync_stream(struct cgpu_stream *stream, uint64_t begun, uint64_t now);

/* Note that a rest may begin. The program has synchronised, and GPU's markers were checked. */
void cgpu_sync_begin_rest(struct cgpu_gate_gpu *gpu, uint64_t now);

#endif
