/* The GPUs of the limits, as the driver numbers its devices. */
#include "entry/shim.h"
#include "mapped_limits.h"

uint64_t
cgpu_device_cap(int32_t gpu)
{
    return gpu < 0 ? 0 : cgpu_mapped_limits_cap(cgpu_limits, (uint32_t)gpu);
}

uint64_t
cgpu_device_room(int32_t gpu)
{
    return gpu < 0 ? 0 : cgpu_mapped_limits_room(cgpu_limits, (uint32_t)gpu);
}

static int32_t
gpu_of_uuid(const struct cgpu_cuda_uuid *uuid)
{
    int gpu = cgpu_mapped_limits_find(cgpu_limits, (const uint8_t *)uuid->bytes);
    return gpu >= 0 ? gpu : CGPU_NO_GPU;
}

/*
 * Find the GPU of DEVICE in the limits, which may name a MIG instance or its GPU: the driver's
 * function _v2 gives the instance's own UUID, the older one the GPU's.
 */
static bool
ask_gpu(CUdevice device, int32_t *gpu)
{
    struct cgpu_cuda_uuid uuid;
    bool known = false;
    *gpu = CGPU_NO_GPU;
    if (cgpu_real.cuDeviceGetUuid_v2(&uuid, device) == CUDA_SUCCESS) {
        known = true;
        *gpu = gpu_of_uuid(&uuid);
    }
    if (*gpu == CGPU_NO_GPU && cgpu_real.cuDeviceGetUuid(&uuid, device) == CUDA_SUCCESS) {
        known = true;
        *gpu = gpu_of_uuid(&uuid);
    }
    return known;
}

/*
 * The unit in which memory on DEVICE is charged: a block, or the driver's unit for mapped memory if
 * that is larger.
 */
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
    if (cgpu_state->devices[device] == 0 && ask_gpu(device, &gpu)) {
        if (gpu >= 0) {
            cgpu_state->granularity[gpu] = ask_granularity(device);
        }
        /* release: a thread that reads the number also sees the granularity. */
        __atomic_store_n(&cgpu_state->devices[device], (int8_t)(gpu < 0 ? -1 : gpu + 1),
                         __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&cgpu_state->lock);
    return cgpu_state->devices[device];
}

int32_t
cgpu_device_gpu(CUdevice device)
{
    if (device < 0 || device >= CGPU_MAX_DEVICES || !cgpu_state_is_attached()) {
        return CGPU_NO_GPU;
    }
    int8_t known = __atomic_load_n(&cgpu_state->devices[device], __ATOMIC_ACQUIRE);
    if (known == 0) {
        known = learn_device(device);
    }
    return known > 0 ? known - 1 : CGPU_NO_GPU;
}

CUdevice
cgpu_device_of(int32_t gpu)
{
    CUdevice device = 0;
    while (device < CGPU_MAX_DEVICES - 1 &&
           __atomic_load_n(&cgpu_state->devices[device], __ATOMIC_ACQUIRE) != gpu + 1) {
        device++;
    }
    return device;
}
