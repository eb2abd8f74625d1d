/*
 * Permits: which processes of a container may have work in flight while other containers wait.
 *
 * The next container waits for all that is in flight, so only few processes may have any. A process
 * takes one of the two permits in the ledger before it launches. While other processes of the
 * container queue, it gives its permit back when it has nothing in flight. Once it has launched
 * 1.25 ms of work, it lets that work end before it launches more. Its permit expires at a time that
 * it moves on as it works, so the others do not wait long for a process that is stopped or dead.
 */
#ifndef CGPU_PERMITS_H
#define CGPU_PERMITS_H

#include "gate/state.h"

/*
 * Whether the process may launch on GPU at NOW under the gate WORD. Returns 0 if so, otherwise the
 * time at which to ask again. A process that queues asks earlier if the ledger's `freed` changes.
 */
uint64_t cgpu_permits_take(struct cgpu_gate_gpu *gpu, uint32_t word, uint64_t now);

/* If the process has work on GPU, renew its permit. Otherwise give it back if others queue. */
void cgpu_permits_renew(struct cgpu_gate_gpu *gpu, uint64_t now);

#endif
