/* What can be asked of the current context, and the settings that only have to be remembered. */
#include "sim.h"

SIM_API(cuCtxGetDevice, (int *out), (out))
{
    struct sim_device *device;
    int result = out == NULL ? CUDA_ERROR_INVALID_VALUE : sim_device_of_context(&device);
    if (result == CUDA_SUCCESS) {
        *out = (int)device->ordinal;
    }
    return result;
}

SIM_API(cuCtxGetFlags, (uint32_t *out), (out))
{
    struct sim_context *context;
    int result = out == NULL ? CUDA_ERROR_INVALID_VALUE : sim_context_current(&context);
    if (result == CUDA_SUCCESS) {
        *out = context->flags;
    }
    return result;
}

SIM_API(cuCtxSetFlags, (uint32_t flags), (flags))
{
    struct sim_context *context;
    int result = sim_context_current(&context);
    if (result == CUDA_SUCCESS) {
        context->flags = flags;
    }
    return result;
}

/* NULL names the current context. */
static int
named_or_current(struct sim_context *named, struct sim_context **out)
{
    if (named == NULL) {
        return sim_context_current(out);
    }
    *out = sim_object_find(SIM_CONTEXT, named);
    return *out != NULL && (*out)->alive ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

SIM_API(cuCtxGetId, (struct sim_context * named, unsigned long long *out), (named, out))
{
    struct sim_context *context;
    int result = out == NULL ? CUDA_ERROR_INVALID_VALUE : named_or_current(named, &context);
    if (result == CUDA_SUCCESS) {
        *out = context->id;
    }
    return result;
}

SIM_API(cuCtxGetApiVersion, (struct sim_context * named, unsigned *out), (named, out))
{
    struct sim_context *context;
    int result = out == NULL ? CUDA_ERROR_INVALID_VALUE : named_or_current(named, &context);
    if (result == CUDA_SUCCESS) {
        *out = 3020;
    }
    return result;
}

SIM_API(cuCtxSynchronize, (void), ())
{
    struct sim_context *context;
    int result = sim_context_current(&context);
    if (result == CUDA_SUCCESS) {
        result = sim_capture_touch_context(context);
    }
    if (result == CUDA_SUCCESS) {
        sim_context_wait(context);
        sim_pools_trim(context->device);
    }
    return result;
}

SIM_API(cuCtxGetStreamPriorityRange, (int *least, int *greatest), (least, greatest))
{
    struct sim_context *context;
    int result = sim_context_current(&context);
    if (result == CUDA_SUCCESS && least != NULL) {
        *least = 0;
    }
    if (result == CUDA_SUCCESS && greatest != NULL) {
        *greatest = -5;
    }
    return result;
}

SIM_API(cuCtxGetCacheConfig, (int *out), (out))
{
    struct sim_context *context;
    int result = out == NULL ? CUDA_ERROR_INVALID_VALUE : sim_context_current(&context);
    if (result == CUDA_SUCCESS) {
        *out = context->cache_config;
    }
    return result;
}

SIM_API(cuCtxSetCacheConfig, (int config), (config))
{
    struct sim_context *context;
    int result = sim_context_current(&context);
    if (result == CUDA_SUCCESS) {
        context->cache_config = config;
    }
    return result;
}

SIM_API(cuCtxGetSharedMemConfig, (int *out), (out))
{
    struct sim_context *context;
    int result = out == NULL ? CUDA_ERROR_INVALID_VALUE : sim_context_current(&context);
    if (result == CUDA_SUCCESS) {
        *out = context->shared_config;
    }
    return result;
}

SIM_API(cuCtxSetSharedMemConfig, (int config), (config))
{
    struct sim_context *context;
    int result = sim_context_current(&context);
    if (result == CUDA_SUCCESS) {
        context->shared_config = config;
    }
    return result;
}

SIM_API(cuCtxResetPersistingL2Cache, (void), ())
{
    struct sim_context *context;
    return sim_context_current(&context);
}

/* Peer access changes nothing here: all device memory of a process is in its address space. */
SIM_API(cuCtxEnablePeerAccess, (struct sim_context * peer, unsigned flags), (peer, flags))
{
    struct sim_context *context;
    int result = sim_context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (sim_object_find(SIM_CONTEXT, peer) == NULL || !peer->alive || flags != 0) {
        return flags != 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
    }
    if (peer->device == context->device) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    uint32_t bit = 1u << peer->device->ordinal;
    if ((context->peers & bit) != 0) {
        return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    }
    context->peers |= bit;
    return CUDA_SUCCESS;
}

SIM_API(cuCtxDisablePeerAccess, (struct sim_context * peer), (peer))
{
    struct sim_context *context;
    int result = sim_context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (sim_object_find(SIM_CONTEXT, peer) == NULL || !peer->alive) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    uint32_t bit = 1u << peer->device->ordinal;
    if ((context->peers & bit) == 0) {
        return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    }
    context->peers &= ~bit;
    return CUDA_SUCCESS;
}
