/*
 * Primary contexts, and the green contexts that keep them alive.
 *
 * Each device has one primary context. The driver counts its references. After each change the
 * driver is asked whether the context is still active, so our record stays right however retains,
 * releases, resets and green contexts follow each other. All of this happens under the lock of
 * contexts.
 */
#include "compute/follow.h"
#include "compute/launch_state.h"
#include "context.h"
#include "entry/shim.h"
#include "memory/account.h"
#include "memory/charge.h"
#include "memory/context_cost.h"
#include "memory/growth.h"

/* The most that a green context takes, by `make gpu-check`: 4 to 6 MiB on an H200. */
enum { GREEN_BYTES = 6 << 20 };

/*
 * Whether DEVICE's primary context is inactive. If the driver does not answer, as after an error
 * that ends a context, the context counts as active: it still has its memory.
 */
static bool
is_inactive(CUdevice device)
{
    unsigned int flags = 0;
    int active = 0;
    return cgpu_real.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS &&
           active == 0;
}

static void
forget(int32_t gpu)
{
    if (gpu >= 0 && cgpu_state->primary[gpu] != NULL) {
        cgpu_context_gone(cgpu_state->primary[gpu]);
        cgpu_state->primary[gpu] = NULL;
    }
}

struct activation {
    CUdevice device;
    int32_t gpu;
    bool fresh; /* the primary context was not recorded yet, and was charged now */
    uint64_t charged;
};

/*
 * Charge what it takes to activate DEVICE's primary context. On success the lock is held; finish()
 * releases it.
 */
static CUresult
begin(struct activation *activation, CUdevice device)
{
    activation->device = device;
    activation->gpu = cgpu_device_gpu(device);
    if (!cgpu_state_is_attached()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    CUresult status = cgpu_context_check(device, activation->gpu);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    pthread_mutex_lock(&cgpu_state->contexts);
    if (is_inactive(device)) {
        forget(activation->gpu);
    }
    activation->fresh = activation->gpu < 0 || cgpu_state->primary[activation->gpu] == NULL;
    if (activation->fresh) {
        status = cgpu_context_charge(activation->gpu, &activation->charged);
    }
    if (status != CUDA_SUCCESS) {
        pthread_mutex_unlock(&cgpu_state->contexts);
    }
    return status;
}

/*
 * Record what was activated, or release its charge. STATUS is the driver's answer. On success,
 * CONTEXT is the primary context.
 */
static CUresult
finish(const struct activation *activation, CUresult status, CUcontext context)
{
    if (activation->fresh && status != CUDA_SUCCESS) {
        cgpu_account_release(activation->gpu, activation->charged);
    } else if (activation->fresh) {
        status = cgpu_context_hold(context, activation->gpu, activation->charged);
        if (status == CUDA_SUCCESS) {
            status = cgpu_growth_of_context_locked((uint64_t)(uintptr_t)context, activation->gpu);
        }
        if (status != CUDA_SUCCESS) {
            cgpu_account_give_back_owned((uint64_t)(uintptr_t)context);
        }
        cgpu_state->primary[activation->gpu] = status == CUDA_SUCCESS ? context : NULL;
    }
    pthread_mutex_unlock(&cgpu_state->contexts);
    return status;
}

CUresult
cgpu_primary_retain(CUresult (*real)(CUcontext *, CUdevice), CUcontext *context, CUdevice device)
{
    struct activation activation;
    if (context == NULL) {
        return real(NULL, device);
    }
    CUresult status = begin(&activation, device);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    status = real(context, device);
    CUresult kept = finish(&activation, status, status == CUDA_SUCCESS ? *context : NULL);
    if (status == CUDA_SUCCESS && kept != CUDA_SUCCESS) {
        cgpu_real.cuDevicePrimaryCtxRelease_v2(device);
    }
    return kept;
}

/*
 * Called before the driver releases something that may keep GPU's primary context alive: note that
 * the context may go.
 */
static void
begin_release(int32_t gpu)
{
    if (gpu >= 0 && cgpu_state->primary[gpu] != NULL) {
        cgpu_follow_context_going(cgpu_state->primary[gpu], true);
    }
}

/*
 * Called after the driver has released it: if DEVICE's primary context has gone, forget it. Ends
 * what begin_release began.
 */
static CUresult
end_release(CUresult status, CUdevice device)
{
    int32_t gpu = cgpu_device_gpu(device);
    if (status == CUDA_SUCCESS && is_inactive(device)) {
        forget(gpu);
    } else if (gpu >= 0 && cgpu_state->primary[gpu] != NULL) {
        cgpu_follow_context_going(cgpu_state->primary[gpu], false);
    }
    pthread_mutex_unlock(&cgpu_state->contexts);
    return status;
}

CUresult
cgpu_primary_release(CUresult (*real)(CUdevice), CUdevice device)
{
    if (!cgpu_state_is_attached()) {
        return real(device);
    }
    pthread_mutex_lock(&cgpu_state->contexts);
    begin_release(cgpu_device_gpu(device));
    return end_release(real(device), device);
}

/* Reset. This frees everything, even if the driver then reports the context as active again. */
CUresult
cgpu_primary_reset(CUresult (*real)(CUdevice), CUdevice device)
{
    if (!cgpu_state_is_attached()) {
        return real(device);
    }
    pthread_mutex_lock(&cgpu_state->contexts);
    begin_release(cgpu_device_gpu(device));
    CUresult status = real(device);
    if (status == CUDA_SUCCESS) {
        forget(cgpu_device_gpu(device));
    }
    return end_release(status, device);
}

/*
 * The handle of an active primary context. It is retained and released, which leaves its count as
 * it was.
 */
static CUcontext
handle_of(CUdevice device)
{
    CUcontext context = NULL;
    if (cgpu_real.cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS) {
        cgpu_real.cuDevicePrimaryCtxRelease_v2(device);
    }
    return context;
}

/* Record GREEN. The primary context keeps GREEN's memory, so that is recorded in its account. */
static CUresult
keep_green(const struct activation *activation, CUgreenCtx green, uint64_t bytes)
{
    struct cgpu_holding holding = {
        .handle = (uint64_t)(uintptr_t)green,
        .extra = (uint64_t)activation->device,
        .kind = CGPU_KIND_GREEN,
        .gpu = (uint32_t)activation->gpu,
    };
    struct cgpu_target target = {
        .gpu = activation->gpu,
        .owner = (uint64_t)(uintptr_t)handle_of(activation->device),
    };
    CUresult status =
        bytes != 0 ? cgpu_growth_keep(&target, CGPU_GROWTH_GREEN, bytes) : CUDA_SUCCESS;
    return status == CUDA_SUCCESS ? cgpu_account_hold(&holding) : status;
}

/*
 * Create a green context. It retains the primary one for its lifetime. When it is destroyed, the
 * driver keeps its memory, and takes as much again for the next one.
 */
CUresult
cgpu_primary_create_green(CUresult (*real)(CUgreenCtx *, CUdevResourceDesc, CUdevice, unsigned int),
                          CUgreenCtx *green, CUdevResourceDesc resources, CUdevice device,
                          unsigned int flags)
{
    struct activation activation;
    uint64_t charged = 0;
    if (green == NULL) {
        return real(NULL, resources, device, flags);
    }
    CUresult status = begin(&activation, device);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    status = activation.gpu < 0 ? CUDA_SUCCESS : cgpu_charge(activation.gpu, GREEN_BYTES, &charged);
    CUresult made = status == CUDA_SUCCESS ? real(green, resources, device, flags) : status;
    CUresult kept = finish(&activation, made, made == CUDA_SUCCESS ? handle_of(device) : NULL);
    if (kept == CUDA_SUCCESS) {
        kept = keep_green(&activation, *green, charged);
    } else {
        cgpu_account_release(activation.gpu, charged);
    }
    if (made == CUDA_SUCCESS && kept != CUDA_SUCCESS) {
        cgpu_real.cuGreenCtxDestroy(*green);
    }
    return kept;
}

/* The context of GREEN, by the driver; its handle may differ from GREEN's. */
static CUcontext
context_of(CUgreenCtx green)
{
    CUcontext context = NULL;
    return cgpu_real.cuCtxFromGreenCtx(&context, green) == CUDA_SUCCESS ? context : NULL;
}

CUresult
cgpu_primary_destroy_green(CUresult (*real)(CUgreenCtx), CUgreenCtx green)
{
    struct cgpu_holding holding;
    if (!cgpu_account_take(CGPU_KIND_GREEN, (uint64_t)(uintptr_t)green, &holding)) {
        return real(green);
    }
    pthread_mutex_lock(&cgpu_state->contexts);
    CUcontext context = context_of(green);
    begin_release((int32_t)holding.gpu);
    cgpu_follow_context_going(context, true);
    CUresult status = real(green);
    if (status == CUDA_SUCCESS) {
        cgpu_follow_context_gone(context);
        cgpu_context_gone((CUcontext)(void *)green); /* memory under the green handle */
    } else {
        cgpu_follow_context_going(context, false);
        cgpu_account_restore(&holding);
    }
    return end_release(status, (CUdevice)holding.extra);
}

CUresult
cgpu_primary_from_green(CUresult (*real)(CUcontext *, CUgreenCtx), CUcontext *context,
                        CUgreenCtx green)
{
    struct cgpu_holding holding;
    CUresult status = real(context, green);
    if (status != CUDA_SUCCESS || context == NULL ||
        !cgpu_account_find(CGPU_KIND_GREEN, (uint64_t)(uintptr_t)green, &holding)) {
        return status;
    }
    holding.owner = holding.handle;
    holding.handle = (uint64_t)(uintptr_t)*context;
    holding.kind = CGPU_KIND_GREEN_CONTEXT;
    return cgpu_account_hold(&holding);
}
