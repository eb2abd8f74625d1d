/* Launching kernels, by every name there is. A launch takes GPU time and does nothing else. */
#include <string.h>

#include "sim.h"

/*
 * A kernel that polls a word of the host's memory, or one that never ends. It is assumed to leave
 * room for all others: it fills few multiprocessors, takes nobody's turn and uses no GPU time.
 */
static void
stay(struct sim_operation *operation, void *const *parameters)
{
    uint64_t address = 0;
    if (parameters != NULL && parameters[0] != NULL) {
        memcpy(&address, parameters[0], sizeof address);
    }
    operation->type = SIM_OP_AWAIT;
    operation->wait = (struct sim_wait){address, 0, sizeof(uint32_t), SIM_WAIT_NEQ};
}

/* As measured on an H200, driver 580: a context's first launch of a kernel that calls malloc. */
static int
take_heap(const struct sim_function *function)
{
    const uint64_t bytes = UINT64_C(10) << 20;
    struct sim_context *context = function->module->object.owner;
    if (!function->module->image.heap || context->has_heap) {
        return CUDA_SUCCESS;
    }
    int result = sim_take(context->device, bytes);
    if (result == CUDA_SUCCESS) {
        context->has_heap = 1;
        context->bytes += bytes;
    }
    return result;
}

static int
launch(void *stream, void *function, const uint32_t *grid, const uint32_t *block, uint32_t shared,
       void *const *parameters)
{
    struct sim_operation operation = {.type = SIM_OP_KERNEL};
    struct sim_kernel_call *call = &operation.kernel;
    call->function = function;
    for (int i = 0; i < 3; i++) {
        call->grid[i] = grid[i];
        call->block[i] = block[i];
    }
    call->shared_bytes = shared;
    const struct sim_function *known = sim_function_of(function);
    if (known != NULL && known->polls) {
        stay(&operation, parameters);
    }
    int result = known != NULL ? take_heap(known) : CUDA_SUCCESS;
    return result != CUDA_SUCCESS ? result : sim_stream_do(stream, &operation);
}

SIM_API_PER_THREAD(cuLaunchKernel, _ptsz,
                   (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                    unsigned bz, unsigned shared, void *stream, void **parameters, void **extra),
                   (function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra))
{
    (void)extra;
    return launch(stream, function, (uint32_t[]){gx, gy, gz}, (uint32_t[]){bx, by, bz}, shared,
                  parameters);
}

SIM_API_PER_THREAD(cuLaunchCooperativeKernel, _ptsz,
                   (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                    unsigned bz, unsigned shared, void *stream, void **parameters),
                   (function, gx, gy, gz, bx, by, bz, shared, stream, parameters))
{
    return launch(stream, function, (uint32_t[]){gx, gy, gz}, (uint32_t[]){bx, by, bz}, shared,
                  parameters);
}

struct launch_configuration { /* layout of CUlaunchConfig */
    uint32_t grid[3], block[3], shared_bytes;
    void *stream, *attributes;
    uint32_t attribute_count;
};

SIM_API_PER_THREAD(cuLaunchKernelEx, _ptsz,
                   (const struct launch_configuration *configuration, void *function,
                    void **parameters, void **extra),
                   (configuration, function, parameters, extra))
{
    (void)extra;
    if (configuration == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return launch(configuration->stream, function, configuration->grid, configuration->block,
                  configuration->shared_bytes, parameters);
}

struct launch_parameters { /* layout of CUDA_LAUNCH_PARAMS */
    void *function;
    uint32_t grid[3], block[3], shared_bytes;
    void *stream;
    void **parameters;
};

SIM_API(cuLaunchCooperativeKernelMultiDevice,
        (struct launch_parameters * list, unsigned count, unsigned flags), (list, count, flags))
{
    int result = list == NULL || count == 0 || flags > 3 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        result = launch(list[i].stream, list[i].function, list[i].grid, list[i].block,
                        list[i].shared_bytes, list[i].parameters);
    }
    return result;
}

/* The launches of CUDA before 4.0: block and shared memory are set beforehand. */
static int
launch_grid(struct sim_function *handle, int width, int height, void *stream)
{
    struct sim_function *function = sim_object_find(SIM_FUNCTION, handle);
    if (function == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (width <= 0 || height <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    uint32_t grid[] = {(uint32_t)width, (uint32_t)height, 1};
    return launch(stream, function, grid, function->block, function->shared_bytes, NULL);
}

SIM_API(cuLaunch, (struct sim_function * function), (function))
{
    return launch_grid(function, 1, 1, NULL);
}

SIM_API(cuLaunchGrid, (struct sim_function * function, int width, int height),
        (function, width, height))
{
    return launch_grid(function, width, height, NULL);
}

SIM_API(cuLaunchGridAsync, (struct sim_function * function, int width, int height, void *stream),
        (function, width, height, stream))
{
    return launch_grid(function, width, height, stream);
}

SIM_API(cuFuncSetBlockShape, (struct sim_function * handle, int x, int y, int z), (handle, x, y, z))
{
    struct sim_function *function = sim_object_find(SIM_FUNCTION, handle);
    if (function == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    function->block[0] = (uint32_t)x;
    function->block[1] = (uint32_t)y;
    function->block[2] = (uint32_t)z;
    return CUDA_SUCCESS;
}

SIM_API(cuFuncSetSharedSize, (struct sim_function * handle, unsigned bytes), (handle, bytes))
{
    struct sim_function *function = sim_object_find(SIM_FUNCTION, handle);
    if (function == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    function->shared_bytes = bytes;
    return CUDA_SUCCESS;
}

/* Parameters reach no code here; only the handle can be wrong. */
static int
set_parameter(struct sim_function *function)
{
    return sim_object_find(SIM_FUNCTION, function) == NULL ? CUDA_ERROR_INVALID_HANDLE
                                                           : CUDA_SUCCESS;
}

SIM_API(cuParamSetSize, (struct sim_function * function, unsigned bytes), (function, bytes))
{
    (void)bytes;
    return set_parameter(function);
}

SIM_API(cuParamSeti, (struct sim_function * function, int offset, unsigned value),
        (function, offset, value))
{
    (void)offset, (void)value;
    return set_parameter(function);
}

SIM_API(cuParamSetf, (struct sim_function * function, int offset, float value),
        (function, offset, value))
{
    (void)offset, (void)value;
    return set_parameter(function);
}

SIM_API(cuParamSetv, (struct sim_function * function, int offset, void *value, unsigned bytes),
        (function, offset, value, bytes))
{
    (void)offset, (void)value, (void)bytes;
    return set_parameter(function);
}
