/* Accounts. Design: docs/design/memory.md. */
#ifndef CGPU_CUDA_CHARGE_H
#define CGPU_CUDA_CHARGE_H

#include "entry/shim.h"
#include "memory/target.h"

struct cgpu_pending {
    struct cgpu_target target;
    uint64_t charged;
};

/* Charge BYTES. OUT_OF_MEMORY and a log line if they do not fit. */
CUresult cgpu_charge(int32_t gpu, uint64_t bytes, uint64_t *charged);
void cgpu_charge_release(int32_t gpu, uint64_t bytes);

/* Charge BYTES for a program's request of ASKED bytes, which a refusal names. */
CUresult cgpu_charge_for(int32_t gpu, uint64_t bytes, uint64_t asked, uint64_t *charged);

/* Charge BYTES under a lock of kinds.h: a refusal is not logged, and nothing is reclaimed first. */
CUresult cgpu_charge_try(int32_t gpu, uint64_t bytes, uint64_t *charged);

/* Charge what the driver has taken and cannot be made to give back, over the cap if need be. */
void cgpu_charge_force(int32_t gpu, uint64_t bytes);

/* BYTES rounded up to whole units in which the driver takes memory of GPU. */
uint64_t cgpu_charge_whole(int32_t gpu, uint64_t bytes);

/*
 * begin: charge the current context's GPU for BYTES; _whole: rounded up to whole units; resize:
 * change the pending charge to BYTES in all.
 */
CUresult cgpu_charge_begin(struct cgpu_pending *pending, uint64_t bytes);
CUresult cgpu_charge_begin_whole(struct cgpu_pending *pending, uint64_t bytes);
CUresult cgpu_charge_resize(struct cgpu_pending *pending, uint64_t bytes);
void cgpu_charge_cancel(struct cgpu_pending *pending);

/* Keep the charge under KIND and HANDLE. If that fails it is cancelled: the caller frees HANDLE. */
CUresult cgpu_charge_commit(const struct cgpu_pending *pending, enum cgpu_kind kind,
                            uint64_t handle, uint64_t extra);

/* The same for a holding that is charged already. A stale one under its key is given back. */
CUresult cgpu_charge_hold(const struct cgpu_holding *holding);

bool cgpu_charge_find(enum cgpu_kind kind, uint64_t handle, struct cgpu_holding *out);
/* What is left of BOUND after the charge under KIND and HANDLE. */
uint64_t cgpu_charge_left(uint64_t bound, enum cgpu_kind kind, uint64_t handle);

bool cgpu_charge_take(enum cgpu_kind kind, uint64_t handle, struct cgpu_holding *out);
void cgpu_charge_give_back(const struct cgpu_holding *holding);
void cgpu_charge_restore(const struct cgpu_holding *holding);

/* HOLDING goes, and with it CHARGED bytes. False: it was not exported, and nothing was done. */
bool cgpu_charge_end_export(const struct cgpu_holding *holding, uint64_t charged);

/*
 * Freeing: the holding is removed before the real call, because the driver may give the handle to
 * another thread as soon as it is free. The charge is removed after the call, because the memory
 * must be free before anyone relies on it. TAKEN (NULL: nothing was held) is given back or
 * restored, depending on STATUS, the driver's answer, which is returned.
 */
CUresult cgpu_charge_end_free(const struct cgpu_holding *taken, CUresult status);

/* Give back everything that OWNER takes along. */
void cgpu_charge_give_back_owned(uint64_t owner);

#endif
