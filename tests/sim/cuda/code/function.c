/* Attributes of functions and kernels, and occupancy by the usual limits of threads and blocks. */
#include "sim.h"

enum { LOCAL_BYTES = 3, ATTRIBUTES = 16, MAX_DYNAMIC_SHARED = 8, CARVEOUT = 9 };

static int
get_attribute(int *out, unsigned attribute, void *handle)
{
    struct sim_function *function = sim_function_of(handle);
    if (function == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (out == NULL || attribute >= ATTRIBUTES) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = function->attributes[attribute];
    return CUDA_SUCCESS;
}

static int
set_attribute(void *handle, unsigned attribute, int value)
{
    struct sim_function *function = sim_function_of(handle);
    if (function == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (attribute < MAX_DYNAMIC_SHARED || attribute >= ATTRIBUTES || value < -1 ||
        (attribute == MAX_DYNAMIC_SHARED && value > 64 << 10)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    function->attributes[attribute] = value;
    return CUDA_SUCCESS;
}

SIM_API(cuFuncGetAttribute, (int *out, unsigned attribute, void *function),
        (out, attribute, function))
{
    return get_attribute(out, attribute, function);
}

SIM_API(cuFuncSetAttribute, (void *function, unsigned attribute, int value),
        (function, attribute, value))
{
    return set_attribute(function, attribute, value);
}

SIM_API(cuKernelGetAttribute, (int *out, unsigned attribute, void *kernel, int device),
        (out, attribute, kernel, device))
{
    const char *name = sim_kernel_name(kernel);
    if (sim_device(device) == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (name != NULL && out != NULL && attribute == LOCAL_BYTES) { /* known in no context too */
        *out = sim_local_bytes(name);
        return CUDA_SUCCESS;
    }
    return get_attribute(out, attribute, kernel);
}

SIM_API(cuKernelSetAttribute, (unsigned attribute, int value, void *kernel, int device),
        (attribute, value, kernel, device))
{
    return sim_device(device) == NULL ? CUDA_ERROR_INVALID_DEVICE
                                      : set_attribute(kernel, attribute, value);
}

static int
remember_nothing(void *function)
{
    return sim_function_of(function) == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

SIM_API(cuFuncSetCacheConfig, (void *function, int config), (function, config))
{
    (void)config;
    return remember_nothing(function);
}

SIM_API(cuFuncSetSharedMemConfig, (void *function, int config), (function, config))
{
    (void)config;
    return remember_nothing(function);
}

SIM_API(cuKernelSetCacheConfig, (void *kernel, int config, int device), (kernel, config, device))
{
    (void)config, (void)device;
    return remember_nothing(kernel);
}

SIM_API(cuFuncGetModule, (struct sim_module * *out, void *handle), (out, handle))
{
    struct sim_function *function = sim_function_of(handle);
    if (function == NULL || out == NULL) {
        return function == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    }
    *out = function->module;
    return CUDA_SUCCESS;
}

SIM_API(cuFuncGetName, (const char **out, void *handle), (out, handle))
{
    struct sim_function *function = sim_function_of(handle);
    if (function == NULL || out == NULL) {
        return function == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    }
    *out = function->name;
    return CUDA_SUCCESS;
}

SIM_API(cuFuncIsLoaded, (int *out, void *function), (out, function))
{
    if (out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const struct sim_function *known = sim_function_of(function);
    *out = known != NULL && known->module->pending == 0;
    return remember_nothing(function);
}

SIM_API(cuFuncLoad, (void *function), (function))
{
    const struct sim_function *known = sim_function_of(function);
    return known == NULL ? CUDA_ERROR_INVALID_HANDLE : sim_module_use(known->module);
}

static int
blocks_per_sm(int *out, void *handle, int block, size_t shared)
{
    struct sim_device *device;
    int result = sim_device_of_context(&device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (sim_function_of(handle) == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (out == NULL || block <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int warps = (block + 31) / 32;
    int blocks = (int)device->facts->threads_per_sm / (warps * 32);
    int by_shared = shared == 0 ? 16 : (int)((64 << 10) / shared);
    blocks = blocks < by_shared ? blocks : by_shared;
    *out = blocks < 16 ? blocks : 16;
    return CUDA_SUCCESS;
}

SIM_API(cuOccupancyMaxActiveBlocksPerMultiprocessor,
        (int *out, void *function, int block, size_t shared), (out, function, block, shared))
{
    return blocks_per_sm(out, function, block, shared);
}

SIM_API(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
        (int *out, void *function, int block, size_t shared, unsigned flags),
        (out, function, block, shared, flags))
{
    (void)flags;
    return blocks_per_sm(out, function, block, shared);
}

static int
best_block(int *grid, int *block, void *function, size_t (*shared_of)(int), size_t shared,
           int limit)
{
    struct sim_device *device;
    int active = 0;
    int result = sim_device_of_context(&device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (grid == NULL || block == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *block = limit <= 0 || limit > 1024 ? 1024 : limit;
    shared = shared_of != NULL ? shared_of(*block) : shared;
    result = blocks_per_sm(&active, function, *block, shared);
    *grid = active * (int)device->facts->sm_count;
    return result;
}

SIM_API(cuOccupancyMaxPotentialBlockSize,
        (int *grid, int *block, void *function, size_t (*shared_of)(int), size_t shared, int limit),
        (grid, block, function, shared_of, shared, limit))
{
    return best_block(grid, block, function, shared_of, shared, limit);
}

SIM_API(cuOccupancyMaxPotentialBlockSizeWithFlags,
        (int *grid, int *block, void *function, size_t (*shared_of)(int), size_t shared, int limit,
         unsigned flags),
        (grid, block, function, shared_of, shared, limit, flags))
{
    (void)flags;
    return best_block(grid, block, function, shared_of, shared, limit);
}

SIM_API(cuOccupancyAvailableDynamicSMemPerBlock,
        (size_t *out, void *function, int blocks, int block), (out, function, blocks, block))
{
    (void)block;
    if (out == NULL || blocks <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = (size_t)(64 << 10) / (size_t)blocks;
    return remember_nothing(function);
}

/* There is nothing to profile, and no profiler to disturb. */
SIM_API(cuProfilerStart, (void), ())
{
    struct sim_context *context;
    return sim_context_current(&context);
}

SIM_API(cuProfilerStop, (void), ())
{
    struct sim_context *context;
    return sim_context_current(&context);
}
