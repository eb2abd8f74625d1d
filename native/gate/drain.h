/* Follow all work of a GPU to its end, and report when it is idle. */
#ifndef CGPU_DRAIN_H
#define CGPU_DRAIN_H

#include "gate/state.h"

/*
 * Do what GPU's gate requires at NOW. Returns when to call again; UINT64_MAX: when the gate
 * changes.
 */
uint64_t cgpu_drain_poll(struct cgpu_gate_gpu *gpu, uint64_t now);

/* Whether GPU's gate is closed and all work has ended since. If so, report it to the arbiter. */
bool cgpu_drain_is_quiet(struct cgpu_gate_gpu *gpu);

/*
 * Report that GPU is idle WHEN: NOW or SOON (ledger_file.h), unless that is reported already. Call
 * it only while GPU's gate is pressed.
 */
void cgpu_drain_report_idle(struct cgpu_gate_gpu *gpu, uint32_t when);

/*
 * For threads without a monitor: if all counted work on GPU has ended, inform the arbiter at once.
 */
void cgpu_drain_finish(struct cgpu_gate_gpu *gpu, uint64_t now);

/* Mark the unmarked work of destroyed streams, so that their entries can be reused. */
void cgpu_drain_release(struct cgpu_gate_gpu *gpu, uint64_t now);

#endif
