/* Linear memory up to CGPU_BLOCK_SMALL. */
#ifndef CGPU_CUDA_SMALL_H
#define CGPU_CUDA_SMALL_H

#include "entry/shim.h"
#include "memory/target.h"

struct cgpu_small {
    struct cgpu_arena_key key;
    bool expected; /* it will take a hole: nothing is charged */
};

/*
 * Charge BYTES before the driver is asked for them. LOW: the entry point has pointers of 32 bits.
 */
CUresult cgpu_small_begin(struct cgpu_small *small, const struct cgpu_target *target,
                          uint64_t bytes, bool low);
void cgpu_small_cancel(const struct cgpu_small *small);

/*
 * The driver has put BYTES at ADDRESS: charge what it took for that. If that does not fit, BYTES
 * are freed again.
 */
CUresult cgpu_small_keep(const struct cgpu_small *small, CUdeviceptr address, uint64_t bytes);

/*
 * leave: before HOLDING's memory is freed. After that, stay if the free failed, gone if it
 * succeeded.
 */
void cgpu_small_leave(const struct cgpu_holding *holding);
void cgpu_small_stay(const struct cgpu_holding *holding);
void cgpu_small_gone(const struct cgpu_holding *holding);

#endif
