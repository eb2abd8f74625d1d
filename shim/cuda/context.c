/*
 * Contexts. Each costs what the host measured for its GPU. When it is destroyed, all that it owns
 * is given back.
 *
 * Under the lock, the driver's creation or destruction of a context and our record of it are one
 * step. No other lock is held when it is taken. It may be held for long, because creating a context
 * takes milliseconds anyway.
 */
#include "context.h"
#include "compute/batch_slot.h"
#include "compute/follow.h"
#include "compute/launch_state.h"
#include "entry/shim.h"
#include "memory/account.h"
#include "memory/async_free.h"
#include "memory/charge.h"
#include "memory/context_cost.h"
#include "memory/growth.h"
#include "memory/target.h"

void
cgpu_context_gone(CUcontext context)
{
    cgpu_target_forget();
    cgpu_follow_context_gone(context);
    pthread_mutex_lock(&cgpu_state->growth); /* a thread may just be adding to what it has */
    cgpu_account_give_back_owned((uint64_t)(uintptr_t)context);
    pthread_mutex_unlock(&cgpu_state->growth);
    cgpu_async_free_context_gone(context);
    cgpu_reclaim_context_gone();
}

struct making {
    int32_t gpu;
    uint64_t charged;
};

/* Charge a context on DEVICE. On success the lock is held; finish() releases it. */
static CUresult
begin(struct making *making, CUdevice device)
{
    making->gpu = cgpu_device_gpu(device);
    CUresult status = cgpu_context_check(device, making->gpu);
    if (status == CUDA_SUCCESS) {
        status = cgpu_context_charge(making->gpu, &making->charged);
    }
    if (status == CUDA_SUCCESS) {
        pthread_mutex_lock(&cgpu_state->contexts);
    }
    return status;
}

/* Record the context that was made, or release its charge. STATUS is the driver's answer. */
static CUresult
finish(const struct making *making, CUresult status, const CUcontext *context)
{
    if (status != CUDA_SUCCESS) {
        cgpu_account_release(making->gpu, making->charged);
    } else {
        cgpu_batch_slot_forget(); /* the new context is current now */
        status = cgpu_context_hold(*context, making->gpu, making->charged);
        if (status == CUDA_SUCCESS) {
            status = cgpu_growth_of_context_locked((uint64_t)(uintptr_t)*context, making->gpu);
        }
        if (status != CUDA_SUCCESS) {
            cgpu_real.cuCtxDestroy_v2(*context);
            cgpu_account_give_back_owned((uint64_t)(uintptr_t)*context);
        }
    }
    pthread_mutex_unlock(&cgpu_state->contexts);
    return status;
}

CUresult
cgpu_context_create(CUresult (*real)(CUcontext *, unsigned int, CUdevice), CUcontext *context,
                    unsigned int flags, CUdevice device)
{
    struct making making;
    if (context == NULL) {
        return real(NULL, flags, device);
    }
    CUresult status = begin(&making, device);
    return status != CUDA_SUCCESS ? status : finish(&making, real(context, flags, device), context);
}

CUresult
cgpu_context_create_v3(CUresult (*real)(CUcontext *, void *, int, unsigned int, CUdevice),
                       CUcontext *context, void *affinity, int count, unsigned int flags,
                       CUdevice device)
{
    struct making making;
    if (context == NULL) {
        return real(NULL, affinity, count, flags, device);
    }
    CUresult status = begin(&making, device);
    return status != CUDA_SUCCESS
               ? status
               : finish(&making, real(context, affinity, count, flags, device), context);
}

CUresult
cgpu_context_create_v4(CUresult (*real)(CUcontext *, void *, unsigned int, CUdevice),
                       CUcontext *context, void *parameters, unsigned int flags, CUdevice device)
{
    struct making making;
    if (context == NULL) {
        return real(NULL, parameters, flags, device);
    }
    CUresult status = begin(&making, device);
    return status != CUDA_SUCCESS
               ? status
               : finish(&making, real(context, parameters, flags, device), context);
}

CUresult
cgpu_context_create_vdpau(CUresult (*real)(CUcontext *, unsigned int, CUdevice, uint32_t, void *),
                          CUcontext *context, unsigned int flags, CUdevice device,
                          uint32_t vdp_device, void *vdp_lookup)
{
    struct making making;
    if (context == NULL) {
        return real(NULL, flags, device, vdp_device, vdp_lookup);
    }
    CUresult status = begin(&making, device);
    return status != CUDA_SUCCESS
               ? status
               : finish(&making, real(context, flags, device, vdp_device, vdp_lookup), context);
}

CUresult
cgpu_context_destroy(CUresult (*real)(CUcontext), CUcontext context)
{
    if (!cgpu_state_is_attached()) {
        return real(context);
    }
    pthread_mutex_lock(&cgpu_state->contexts);
    cgpu_follow_context_going(context, true);
    CUresult status = real(context);
    if (status == CUDA_SUCCESS) {
        cgpu_context_gone(context);
    } else {
        cgpu_follow_context_going(context, false);
    }
    pthread_mutex_unlock(&cgpu_state->contexts);
    return status;
}

/* Change the usage count of CONTEXT by STEP. Returns the new count, 0 for an unknown context. */
static uint64_t
count(CUcontext context, int step)
{
    struct cgpu_holding holding;
    if (!cgpu_account_find(CGPU_KIND_CONTEXT, (uint64_t)(uintptr_t)context, &holding)) {
        return 0;
    }
    holding.extra += (uint64_t)(int64_t)step;
    cgpu_holdings_update(cgpu_state->holdings, &holding);
    return holding.extra;
}

CUresult
cgpu_context_attach(CUresult (*real)(CUcontext *, unsigned int), CUcontext *context,
                    unsigned int flags)
{
    if (!cgpu_state_is_attached()) {
        return real(context, flags);
    }
    pthread_mutex_lock(&cgpu_state->contexts);
    CUresult status = real(context, flags);
    if (status == CUDA_SUCCESS && context != NULL) {
        count(*context, 1);
    }
    pthread_mutex_unlock(&cgpu_state->contexts);
    return status;
}

CUresult
cgpu_context_detach(CUresult (*real)(CUcontext), CUcontext context)
{
    if (!cgpu_state_is_attached()) {
        return real(context);
    }
    pthread_mutex_lock(&cgpu_state->contexts);
    cgpu_follow_context_going(context, true);
    CUresult status = real(context);
    if (status == CUDA_SUCCESS && count(context, -1) == 0) {
        cgpu_context_gone(context);
    } else {
        cgpu_follow_context_going(context, false);
    }
    pthread_mutex_unlock(&cgpu_state->contexts);
    return status;
}

/* ---- limits ---- */

enum { MOST_KNOWN = CU_LIMIT_PER_BLOCK_MEMORY_SIZE };

/* Whether a limit takes no memory: it is a hint, a flag, or one of two that can only be read. */
static bool
takes_no_memory(int limit)
{
    return limit >= CU_LIMIT_MAX_L2_FETCH_GRANULARITY &&
           limit <= CU_LIMIT_CIG_SHMEM_FALLBACK_ENABLED;
}

/*
 * Whether LIMIT can be set. A limit that the driver does not let us read is not supported here, and
 * setting it would give the same error.
 */
static CUresult
check_limit(int limit)
{
    size_t value;
    CUresult status = cgpu_real.cuCtxGetLimit(&value, limit);
    if (status == CUDA_SUCCESS && (limit < 0 || limit > MOST_KNOWN)) {
        cgpu_log_text(CGPU_LOG_UNKNOWN, "a limit that this release does not know is not set by ",
                      "cuCtxSetLimit");
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    }
    return status;
}

CUresult
cgpu_context_set_limit(CUresult (*real)(int, size_t), int limit, size_t value)
{
    struct cgpu_target target;
    bool is_unknown = limit < 0 || limit > MOST_KNOWN;
    if (takes_no_memory(limit) || (is_unknown && cgpu_may_pass_unknown())) {
        return real(limit, value);
    }
    CUresult status = cgpu_target_current(&target);
    if (status == CUDA_SUCCESS) {
        status = check_limit(limit);
    }
    if (status != CUDA_SUCCESS) {
        return status;
    }
    pthread_mutex_lock(&cgpu_state->contexts);
    status = cgpu_growth_limit(real, limit, value, &target);
    pthread_mutex_unlock(&cgpu_state->contexts);
    return status;
}
