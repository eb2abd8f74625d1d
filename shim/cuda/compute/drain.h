/* Seeing all work of a GPU to its end, telling idleness. Under the lock. */
#ifndef CGPU_CUDA_DRAIN_H
#define CGPU_CUDA_DRAIN_H

#include "compute/flow.h"

/* The gate of GPU PLACE is closed by WORD; or it is PRESSED. Do what is due; when to look again. */
uint64_t cgpu_drain_closed(uint32_t place, uint32_t word, uint64_t now);
uint64_t cgpu_drain_pressed(uint32_t place, uint64_t now);

/* Has all work ended since the gate closed? Then say so. */
bool cgpu_drain_quiet(uint32_t place);

/* Without a helper: if all counted work on GPU PLACE has ended, tell the arbiter at once. */
void cgpu_drain_finish(uint32_t place, uint64_t now);

#endif
