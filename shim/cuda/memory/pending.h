/* A charge for what the current context asks of the driver, until it is kept or cancelled. */
#ifndef CGPU_CUDA_PENDING_H
#define CGPU_CUDA_PENDING_H

#include "entry/shim.h"
#include "memory/target.h"

struct cgpu_pending {
    struct cgpu_target target;
    uint64_t charged;
};

/*
 * begin: charge BYTES to the current context's GPU. begin_whole: BYTES rounded up to whole units.
 * resize: change the pending charge to BYTES in total.
 */
CUresult cgpu_pending_begin(struct cgpu_pending *pending, uint64_t bytes);
CUresult cgpu_pending_begin_whole(struct cgpu_pending *pending, uint64_t bytes);
CUresult cgpu_pending_resize(struct cgpu_pending *pending, uint64_t bytes);
void cgpu_pending_cancel(struct cgpu_pending *pending);

/*
 * Keep the charge under KIND and HANDLE. If that fails, it is cancelled, and the caller frees
 * HANDLE.
 */
CUresult cgpu_pending_commit(const struct cgpu_pending *pending, enum cgpu_kind kind,
                             uint64_t handle, uint64_t extra);

#endif
