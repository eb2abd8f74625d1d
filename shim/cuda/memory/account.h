/* The account of this process. Design: docs/design/memory.md. */
#ifndef CGPU_CUDA_ACCOUNT_H
#define CGPU_CUDA_ACCOUNT_H

#include "entry/shim.h"

/* Charge BYTES. OUT_OF_MEMORY: they do not fit; nothing is logged, and nothing reclaimed. */
CUresult cgpu_account_charge(int32_t gpu, uint64_t bytes, uint64_t *charged);

/* Charge what the driver has taken and does not give back, over the cap if it does not fit. */
void cgpu_account_force(int32_t gpu, uint64_t bytes);
void cgpu_account_release(int32_t gpu, uint64_t bytes);

/* BYTES rounded up to the units in which the driver takes memory of GPU. */
uint64_t cgpu_account_whole(int32_t gpu, uint64_t bytes);

/*
 * Keep HOLDING, which is charged. If that fails, its charge is given back, and the caller frees its
 * memory. A stale holding under the same key is given back first.
 */
CUresult cgpu_account_hold(const struct cgpu_holding *holding);

bool cgpu_account_find(enum cgpu_kind kind, uint64_t handle, struct cgpu_holding *out);
bool cgpu_account_take(enum cgpu_kind kind, uint64_t handle, struct cgpu_holding *out);
void cgpu_account_give_back(const struct cgpu_holding *holding);
void cgpu_account_restore(const struct cgpu_holding *holding);

/* The part of BOUND that is not charged yet under KIND and HANDLE. */
uint64_t cgpu_account_left(uint64_t bound, enum cgpu_kind kind, uint64_t handle);

/*
 * Remove HOLDING, which was exported, with CHARGED bytes. False: it was not exported, and nothing
 * was done.
 */
bool cgpu_account_end_export(const struct cgpu_holding *holding, uint64_t charged);

/*
 * End a free. The caller has removed the holding before the driver's call, because the driver may
 * give the handle to another thread as soon as it is free. Its charge is removed now, because the
 * memory must be free before anyone relies on it. STATUS is the driver's answer, which is returned:
 * on success TAKEN (NULL: nothing was held) is given back, otherwise it is restored.
 */
CUresult cgpu_account_end_free(const struct cgpu_holding *taken, CUresult status);

/* Give back everything whose owner is OWNER. */
void cgpu_account_give_back_owned(uint64_t owner);

#endif
