/* Charges, and what is done before one is refused. */
#ifndef CGPU_CUDA_CHARGE_H
#define CGPU_CUDA_CHARGE_H

#include "entry/shim.h"

/*
 * Charge BYTES. If they do not fit, reclaim idle memory and try again. OUT_OF_MEMORY: they still do
 * not fit; a line is logged.
 */
CUresult cgpu_charge(int32_t gpu, uint64_t bytes, uint64_t *charged);

/* Charge BYTES for a program's request of ASKED bytes. A refusal names ASKED. */
CUresult cgpu_charge_for(int32_t gpu, uint64_t bytes, uint64_t asked, uint64_t *charged);

/* The bytes that did not fit, and where; 0: all did. */
struct cgpu_lack {
    int32_t gpu;
    uint64_t bytes;
};

/*
 * After a refusal on GPU: give back what is charged and no longer held, and what is only kept for
 * reuse. True: there is room for BYTES now, perhaps made by another thread. The caller holds no
 * kind's lock.
 */
bool cgpu_reclaim(int32_t gpu, uint64_t bytes);

/* Before an import is tried again: reclaim, and give back what dead processes have shared. */
void cgpu_reclaim_shared(const struct cgpu_lack *lack);

/*
 * Give back what is charged and no longer held. For a kind that has nothing, this costs one load.
 */
void cgpu_reclaim_collect(void);

/*
 * After a context is gone: give back what is charged and no longer held. With the last context of a
 * GPU, the reserves of its pools and graphs are gone too.
 */
void cgpu_reclaim_context_gone(void);

#endif
