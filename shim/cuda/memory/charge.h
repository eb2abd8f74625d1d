/* Charges, and what is done before one is refused. */
#ifndef CGPU_CUDA_CHARGE_H
#define CGPU_CUDA_CHARGE_H

#include "entry/shim.h"

/* Charge BYTES. OUT_OF_MEMORY and a log line if they do not fit, after reclaiming what is idle. */
CUresult cgpu_charge(int32_t gpu, uint64_t bytes, uint64_t *charged);

/* Charge BYTES for a program's request of ASKED bytes, which a refusal names. */
CUresult cgpu_charge_for(int32_t gpu, uint64_t bytes, uint64_t asked, uint64_t *charged);

/* The bytes that did not fit; 0: all did. */
struct cgpu_lack {
    int32_t gpu;
    uint64_t bytes;
};

/*
 * A request on GPU was refused: give back what is charged and no longer held, and what is only kept
 * for reuse. True if there is room for BYTES now (another thread may have made it). Called with no
 * kind's lock held.
 */
bool cgpu_reclaim(int32_t gpu, uint64_t bytes);

/* Before an import is tried again: reclaim, and also give back what dead processes have shared. */
void cgpu_reclaim_shared(const struct cgpu_lack *lack);

/* Give back what is charged and no longer held. One load each when there is nothing of the kind. */
void cgpu_reclaim_collect(void);

/*
 * Give back what is charged and no longer held, after a context is gone: the last context of a GPU
 * takes the reserves of its pools and graphs with it.
 */
void cgpu_reclaim_context_gone(void);

#endif
