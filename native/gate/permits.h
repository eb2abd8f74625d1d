/*
 * Permits: which processes of a container have work in flight while other containers wait.
 *
 * The next container waits for all that is in flight, so few processes have any at a time. A
 * process takes one of the two permits in the ledger before it launches. While others queue for it,
 * it gives the permit back when it has nothing in flight; once it has launched 500 us of work, it
 * first lets that end. A permit is taken until a time, which its process moves on, so nobody waits
 * for a process that is stopped or dead.
 */
#ifndef CGPU_PERMITS_H
#define CGPU_PERMITS_H

#include "gate/state.h"

/*
 * Whether the process may launch on GPU at NOW under the gate WORD. Returns 0 if so, otherwise when
 * to ask again, or sooner if the ledger's `freed` is not the GPU's any more.
 */
uint64_t cgpu_permits_take(struct cgpu_gate_gpu *gpu, uint32_t word, uint64_t now);

/* Keep the process's permit for GPU, if it has one, or give it back if others queue for it. */
void cgpu_permits_look(struct cgpu_gate_gpu *gpu, uint64_t now);

#endif
