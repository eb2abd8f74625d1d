/*
 * Limits of a context. Stack, device runtime and memory of blocks take device memory as they are
 * set, and keep it until the context goes; printf buffer and heap are taken by kernels, which are
 * not simulated.
 */
#include "sim.h"

enum {
    LIMIT_STACK = 0,
    LIMIT_SYNC_DEPTH = 3,
    LIMIT_PENDING_LAUNCHES = 4,
    LIMIT_SHARED = 7,
    LIMIT_CIG = 8,
    LIMIT_BLOCK_MEMORY = 10,
    MAX_STACK = 512 << 10,
    MAX_DEPTH = 24,
    LAUNCH_BYTES = 4096 + 512, /* parameters, and how to launch */
    THREAD_BYTES = 4096,       /* state of a thread that waits for its children */
    BLOCKS_PER_SM = 16
};

static const size_t defaults[SIM_MAX_LIMITS] = {1024, 1 << 20, 8 << 20, 2, 2048, 64};

void
sim_limits_reset(struct sim_context *context)
{
    for (int i = 0; i < SIM_MAX_LIMITS; i++) {
        context->limits[i] = defaults[i];
        context->limit_bytes[i] = 0;
    }
}

/* Devices from compute capability 9.0 on do not wait for children. */
static int
is_supported(const struct sim_context *context, unsigned limit)
{
    return limit != LIMIT_SHARED && limit != LIMIT_CIG &&
           (limit != LIMIT_SYNC_DEPTH || context->device->facts->capability_major < 9);
}

static uint64_t
unit_bytes(const struct cgpu_machine_gpu *facts, unsigned limit)
{
    switch (limit) {
    case LIMIT_SYNC_DEPTH:
        return (uint64_t)THREAD_BYTES * facts->threads_per_sm * facts->sm_count;
    case LIMIT_PENDING_LAUNCHES:
        return LAUNCH_BYTES;
    case LIMIT_BLOCK_MEMORY:
        return (uint64_t)BLOCKS_PER_SM * facts->sm_count;
    default:
        return 0;
    }
}

static int
reserve(struct sim_context *context, unsigned limit, size_t value)
{
    uint64_t more = value > defaults[limit] ? value - defaults[limit] : 0;
    if (__builtin_mul_overflow(more, unit_bytes(context->device->facts, limit), &more)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    more = sim_round(more);
    if (more > context->limit_bytes[limit]) {
        uint64_t grown = more - context->limit_bytes[limit];
        int result = sim_take(context->device, grown);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        context->limit_bytes[limit] = more;
        context->bytes += grown;
    }
    return CUDA_SUCCESS;
}

static int
set(struct sim_context *context, unsigned limit, size_t value)
{
    if ((limit == LIMIT_STACK && value > MAX_STACK) ||
        (limit == LIMIT_SYNC_DEPTH && value > MAX_DEPTH)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int result = limit == LIMIT_STACK ? sim_context_grow_local(context, value)
                                      : reserve(context, limit, value);
    if (result == CUDA_SUCCESS) {
        context->limits[limit] = value;
    }
    return result;
}

SIM_API(cuCtxSetLimit, (unsigned limit, size_t value), (limit, value))
{
    struct sim_context *context;
    int result = sim_context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (limit >= SIM_MAX_LIMITS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return is_supported(context, limit) ? set(context, limit, value) : CUDA_ERROR_UNSUPPORTED_LIMIT;
}

SIM_API(cuCtxGetLimit, (size_t *out, unsigned limit), (out, limit))
{
    struct sim_context *context;
    int result = sim_context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (out == NULL || limit >= SIM_MAX_LIMITS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = context->limits[limit];
    return is_supported(context, limit) ? CUDA_SUCCESS : CUDA_ERROR_UNSUPPORTED_LIMIT;
}
