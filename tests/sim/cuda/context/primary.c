/* Primary contexts: one per device and process, reference-counted, always the same handle. */
#include "sim.h"

SIM_API(cuDevicePrimaryCtxRetain, (struct sim_context * *out, int ordinal), (out, ordinal))
{
    struct sim_device *device = sim_device(ordinal);
    if (device == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (device->primary == NULL || !device->primary->alive) {
        int result = sim_context_create(device, device->primary_flags, &device->primary);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        device->primary->is_primary = 1;
    }
    device->primary_references++;
    *out = device->primary;
    return CUDA_SUCCESS;
}

static int
release(int ordinal)
{
    struct sim_device *device = sim_device(ordinal);
    if (device == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (device->primary_references == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (--device->primary_references == 0) {
        sim_context_destroy(device->primary);
    }
    return CUDA_SUCCESS;
}

/* Everything in the context goes, whoever holds a reference. */
static int
reset(int ordinal)
{
    struct sim_device *device = sim_device(ordinal);
    if (device == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (device->primary != NULL && device->primary->alive) {
        sim_context_destroy(device->primary);
    }
    device->primary_references = 0;
    device->primary_flags = 0;
    return CUDA_SUCCESS;
}

static int
set_flags(int ordinal, unsigned flags)
{
    struct sim_device *device = sim_device(ordinal);
    if (device == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    device->primary_flags = flags;
    if (device->primary != NULL && device->primary->alive) {
        device->primary->flags = flags;
    }
    return CUDA_SUCCESS;
}

SIM_API(cuDevicePrimaryCtxRelease, (int ordinal), (ordinal))
{
    return release(ordinal);
}

SIM_API(cuDevicePrimaryCtxRelease_v2, (int ordinal), (ordinal))
{
    return release(ordinal);
}

SIM_API(cuDevicePrimaryCtxReset, (int ordinal), (ordinal))
{
    return reset(ordinal);
}

SIM_API(cuDevicePrimaryCtxReset_v2, (int ordinal), (ordinal))
{
    return reset(ordinal);
}

SIM_API(cuDevicePrimaryCtxSetFlags, (int ordinal, unsigned flags), (ordinal, flags))
{
    return set_flags(ordinal, flags);
}

SIM_API(cuDevicePrimaryCtxSetFlags_v2, (int ordinal, unsigned flags), (ordinal, flags))
{
    return set_flags(ordinal, flags);
}

SIM_API(cuDevicePrimaryCtxGetState, (int ordinal, unsigned *flags, int *active),
        (ordinal, flags, active))
{
    struct sim_device *device = sim_device(ordinal);
    if (device == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (flags != NULL) {
        *flags = device->primary_flags;
    }
    if (active != NULL) {
        *active = device->primary != NULL && device->primary->alive;
    }
    return CUDA_SUCCESS;
}
