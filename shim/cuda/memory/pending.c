/* A charge for what the current context asks of the driver. */
#include "memory/pending.h"
#include "entry/shim.h"
#include "memory/account.h"
#include "memory/charge.h"

CUresult
cgpu_pending_begin(struct cgpu_pending *pending, uint64_t bytes)
{
    CUresult status = cgpu_target_current(&pending->target);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    return cgpu_charge(pending->target.gpu, bytes, &pending->charged);
}

CUresult
cgpu_pending_begin_whole(struct cgpu_pending *pending, uint64_t bytes)
{
    CUresult status = cgpu_target_current(&pending->target);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    int32_t gpu = pending->target.gpu;
    return cgpu_charge_for(gpu, cgpu_account_whole(gpu, bytes), bytes, &pending->charged);
}

CUresult
cgpu_pending_resize(struct cgpu_pending *pending, uint64_t bytes)
{
    uint64_t more = 0;
    int32_t gpu = pending->target.gpu;
    uint64_t whole = cgpu_account_whole(gpu, bytes);
    CUresult status = CUDA_SUCCESS;
    if (whole > pending->charged) {
        status = cgpu_charge_for(gpu, whole - pending->charged, bytes, &more);
        pending->charged += more;
    } else {
        cgpu_account_release(gpu, pending->charged - whole);
        pending->charged = whole;
    }
    return status;
}

void
cgpu_pending_cancel(struct cgpu_pending *pending)
{
    cgpu_account_release(pending->target.gpu, pending->charged);
    pending->charged = 0;
}

CUresult
cgpu_pending_commit(const struct cgpu_pending *pending, enum cgpu_kind kind, uint64_t handle,
                    uint64_t extra)
{
    struct cgpu_holding holding = {
        .handle = handle,
        .owner = pending->target.owner,
        .bytes = pending->charged,
        .extra = extra,
        .kind = kind,
        .gpu = (uint32_t)pending->target.gpu,
    };
    return cgpu_account_hold(&holding);
}
