/*
 * Who pays: from the calling thread's current context to a place in the limits.
 *
 * The driver is asked for the current context at every call (it is cheap, and contexts change in
 * ways that are not hooked); what belongs to that context is remembered by the thread.
 */
#include "entry/shim.h"
#include "entry/thread.h"
#include "mapped_limits.h"

uint64_t
cgpu_target_cap(int32_t gpu)
{
    return gpu < 0 ? 0 : cgpu_mapped_limits_cap(cgpu_limits, (uint32_t)gpu);
}

uint64_t
cgpu_target_room(int32_t gpu)
{
    return gpu < 0 ? 0 : cgpu_mapped_limits_room(cgpu_limits, (uint32_t)gpu);
}

uint64_t
cgpu_target_outside(int32_t gpu)
{
    return gpu < 0 ? 0 : cgpu_mapped_limits_outside(cgpu_limits, (uint32_t)gpu);
}

void
cgpu_target_forget(void)
{
    /* release: a thread that sees the new number also sees the holdings as they are now. */
    __atomic_add_fetch(&cgpu_state->generation, 1, __ATOMIC_RELEASE);
}

static int32_t
place_of_uuid(const struct cgpu_cuda_uuid *uuid)
{
    int place = cgpu_mapped_limits_place(cgpu_limits, (const uint8_t *)uuid->bytes);
    return place >= 0 ? place : CGPU_NO_GPU;
}

/* A MIG instance has its own UUID in _v2 and its GPU's in the other: the limits may name either. */
static bool
ask_place(CUdevice device, int32_t *gpu)
{
    struct cgpu_cuda_uuid uuid;
    bool known = false;
    *gpu = CGPU_NO_GPU;
    if (cgpu_real.cuDeviceGetUuid_v2(&uuid, device) == CUDA_SUCCESS) {
        known = true;
        *gpu = place_of_uuid(&uuid);
    }
    if (*gpu == CGPU_NO_GPU && cgpu_real.cuDeviceGetUuid(&uuid, device) == CUDA_SUCCESS) {
        known = true;
        *gpu = place_of_uuid(&uuid);
    }
    return known;
}

/* A block where the driver has no such notion, or a smaller unit for memory that is mapped. */
static uint64_t
ask_granularity(CUdevice device)
{
    struct cgpu_mem_properties properties = {
        .type = CU_ALLOCATION_PINNED,
        .location = {CU_LOCATION_DEVICE, device},
    };
    size_t granularity = CGPU_BLOCK_BYTES;
    CUresult status = cgpu_real.cuMemGetAllocationGranularity(&granularity, &properties, 0);
    return status == CUDA_SUCCESS && granularity > CGPU_BLOCK_BYTES ? granularity
                                                                    : CGPU_BLOCK_BYTES;
}

static int8_t
learn_device(CUdevice device)
{
    int32_t gpu;
    pthread_mutex_lock(&cgpu_state->lock);
    if (cgpu_state->devices[device] == 0 && ask_place(device, &gpu)) {
        if (gpu >= 0) {
            cgpu_state->granularity[gpu] = ask_granularity(device);
        }
        /* release: whoever reads the place also sees the granularity. */
        __atomic_store_n(&cgpu_state->devices[device], (int8_t)(gpu < 0 ? -1 : gpu + 1),
                         __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&cgpu_state->lock);
    return cgpu_state->devices[device];
}

int32_t
cgpu_target_gpu(CUdevice device)
{
    if (device < 0 || device >= CGPU_MAX_DEVICES || !cgpu_state_is_attached()) {
        return CGPU_NO_GPU;
    }
    int8_t place = __atomic_load_n(&cgpu_state->devices[device], __ATOMIC_ACQUIRE);
    if (place == 0) {
        place = learn_device(device);
    }
    return place > 0 ? place - 1 : CGPU_NO_GPU;
}

CUdevice
cgpu_target_device(int32_t gpu)
{
    CUdevice device = 0;
    while (device < CGPU_MAX_DEVICES - 1 &&
           __atomic_load_n(&cgpu_state->devices[device], __ATOMIC_ACQUIRE) != gpu + 1) {
        device++;
    }
    return device;
}

/*
 * The owner of what CONTEXT allocates; a context that was made around the hooks is charged now.
 * A green context's memory belongs to the primary context of its GPU.
 */
static CUresult
find_owner(CUcontext context, int32_t gpu, uint64_t *owner)
{
    struct cgpu_holding holding;
    uint64_t charged;
    *owner = (uint64_t)(uintptr_t)context;
    if (gpu < 0 || cgpu_charge_find(CGPU_KIND_CONTEXT, *owner, &holding)) {
        return CUDA_SUCCESS;
    }
    if (cgpu_charge_find(CGPU_KIND_GREEN_CONTEXT, *owner, &holding)) {
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
    cgpu_thread.gpu = cgpu_target_gpu(device);
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
