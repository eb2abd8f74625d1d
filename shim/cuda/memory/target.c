/*
 * The payer of an allocation: from the calling thread's current context to a GPU of the limits.
 *
 * The driver is asked for the current context at every call, because contexts change in ways that
 * are not hooked, and the question is cheap. The thread remembers what belongs to that context.
 */
#include "memory/target.h"
#include "entry/shim.h"
#include "entry/thread.h"
#include "memory/account.h"
#include "memory/context_cost.h"
#include "memory/growth.h"

void
cgpu_target_forget(void)
{
    /* release: a thread that sees the new number also sees the holdings as they are now */
    __atomic_add_fetch(&cgpu_state->generation, 1, __ATOMIC_RELEASE);
}

/*
 * Find the owner of what CONTEXT allocates. A context that was made past the hooks is charged now.
 * A green context's memory belongs to the primary context of its GPU.
 */
static CUresult
find_owner(CUcontext context, int32_t gpu, uint64_t *owner)
{
    struct cgpu_holding holding;
    uint64_t charged;
    *owner = (uint64_t)(uintptr_t)context;
    if (gpu < 0 || cgpu_account_find(CGPU_KIND_CONTEXT, *owner, &holding)) {
        return CUDA_SUCCESS;
    }
    if (cgpu_account_find(CGPU_KIND_GREEN_CONTEXT, *owner, &holding)) {
        *owner = (uint64_t)(uintptr_t)cgpu_state->primary[gpu];
        return CUDA_SUCCESS;
    }
    CUresult status = cgpu_context_charge(gpu, &charged);
    status = status == CUDA_SUCCESS ? cgpu_context_hold(context, gpu, charged) : status;
    return status == CUDA_SUCCESS ? cgpu_growth_of_context(*owner, gpu) : status;
}

static CUresult
remember(CUcontext context, uint32_t generation)
{
    CUdevice device;
    CUresult status = cgpu_real.cuCtxGetDevice(&device);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    cgpu_thread.context = context;
    cgpu_thread.generation = generation;
    cgpu_thread.gpu = cgpu_device_gpu(device);
    cgpu_thread.charged = find_owner(context, cgpu_thread.gpu, &cgpu_thread.owner) == CUDA_SUCCESS;
    return CUDA_SUCCESS;
}

CUresult
cgpu_target_current_gpu(int32_t *gpu)
{
    CUcontext context = NULL;
    if (!cgpu_state_is_attached()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    CUresult status = cgpu_real.cuCtxGetCurrent(&context);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    if (context == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    /* acquire: pairs with cgpu_target_forget. */
    uint32_t generation = __atomic_load_n(&cgpu_state->generation, __ATOMIC_ACQUIRE);
    if (context != cgpu_thread.context || generation != cgpu_thread.generation ||
        !cgpu_thread.charged) {
        status = remember(context, generation);
    }
    *gpu = cgpu_thread.gpu;
    return status;
}

CUresult
cgpu_target_current(struct cgpu_target *target)
{
    CUresult status = cgpu_target_current_gpu(&target->gpu);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    target->owner = cgpu_thread.owner;
    return cgpu_thread.charged ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
