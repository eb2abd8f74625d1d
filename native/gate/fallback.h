/*
 * What processes do while nobody arbitrates: each container launches in its own part of a fixed
 * period of CLOCK_MONOTONIC. The period is the same for all of them, so the parts do not overlap.
 */
#ifndef CGPU_FALLBACK_H
#define CGPU_FALLBACK_H

#include <stdint.h>

#include "gate/gate.h"
#include "gate/gate_times.h"

/*
 * The state of the gate at NOW for the part [offset, offset + share) of the period, in millionths.
 * *UNTIL: when it changes (UINT64_MAX: never). With a share of a million the gate is always
 * CGPU_GATE_OPEN.
 */
enum cgpu_gate cgpu_fallback_gate(uint64_t now, uint32_t share_ppm, uint32_t offset_ppm,
                                  uint64_t *until);

/* Whether the arbiter that gave its last heartbeat at HEARTBEAT is gone at NOW. */
int cgpu_fallback_needed(uint64_t heartbeat_ns, uint64_t now);

#endif
