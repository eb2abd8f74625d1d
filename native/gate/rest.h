/*
 * Programs that rest: they synchronise, do something else, and launch again.
 *
 * While others wait, a process says that it has nothing to do when that has been so for
 * CGPU_PACE_IDLE_NS. If its rests are usually longer, it says so when one begins, or a little
 * before the end of the work for which a thread waits (drain.c).
 */
#ifndef CGPU_REST_H
#define CGPU_REST_H

#include "gate/state.h"

/* Something was synchronised, and GPU's markers have been checked: a rest may begin. */
void cgpu_rest_begins(struct cgpu_gate_gpu *gpu, uint64_t now);

/* A thread is about to launch, or to wait at the gate. */
void cgpu_rest_ends(struct cgpu_gate_gpu *gpu, uint64_t now);

#endif
