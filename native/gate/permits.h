/*
 * Permits: which processes of a container have work in flight while other containers wait.
 *
 * The next container waits for all that is in flight, so few processes have any at a time. A
 * process takes one of the two permits in the ledger before it launches. While other processes of
 * the container queue, it gives its permit back when it has nothing in flight; once it has launched
 * 1.25 ms of work, it first lets that end. A permit expires at a time that its process moves on, so
 * the others do not wait long for a process that is stopped or dead.
 */
#ifndef CGPU_PERMITS_H
#define CGPU_PERMITS_H

#include "gate/state.h"

/*
 * Whether the process may launch on GPU at NOW under the gate WORD. Returns 0 if so, otherwise the
 * time at which to ask again. A process that queues asks sooner when the ledger's `freed` differs
 * from GPU's.
 */
uint64_t cgpu_permits_take(struct cgpu_gate_gpu *gpu, uint32_t word, uint64_t now);

/* Renew the process's permit for GPU while it has work; else give it back if others queue. */
void cgpu_permits_renew(struct cgpu_gate_gpu *gpu, uint64_t now);

#endif
