/* Memory pools, charged by what they have reserved. */
#ifndef CGPU_CUDA_POOL_H
#define CGPU_CUDA_POOL_H

#include "entry/shim.h"

/*
 * Under the lock of pools. NULL from find: the pool is not known yet; from add: no entry is free.
 */
struct cgpu_pool *cgpu_pool_find(CUmemoryPool handle);
struct cgpu_pool *cgpu_pool_add(CUmemoryPool handle, CUdevice device, uint32_t flags);

/* Record that BYTES more were charged for POOL. */
void cgpu_pool_grown(struct cgpu_pool *pool, uint64_t bytes);

/* Whether memory that is freed may belong to another process's pool. */
static inline bool
cgpu_pool_imports(void)
{
    return cgpu_state_is_attached() && cgpu_kinds_look(&cgpu_state->kinds.pool_imports) != 0;
}

/*
 * Whether the driver reports what a pool has reserved. CUDA 11.2, the first with pools, does not.
 */
bool cgpu_pool_is_reported(void);

/*
 * Ask the driver for an attribute of POOL. Returns UNKNOWN if it does not answer, as after an error
 * that ends the context. Under the lock of pools if the attribute may change.
 */
uint64_t cgpu_pool_ask(CUmemoryPool pool, int attribute, uint64_t unknown);

/* Under the lock of pools: give back what POOL has released since it was last measured. */
void cgpu_pool_measure(struct cgpu_pool *pool);
void cgpu_pool_measure_all(void);

/*
 * Under no lock. _collect: measure the pools if some may be smaller. _context_gone: the same after
 * a context is gone.
 */
void cgpu_pool_collect(void);
void cgpu_pool_context_gone(void);

/* Release what pools on GPU keep only for reuse, then measure. */
void cgpu_pool_trim(int32_t gpu);

/* Trim POOL to what is used, even while streams capture. */
void cgpu_pool_trim_idle(CUmemoryPool pool);

#endif
