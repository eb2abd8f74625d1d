/* Contexts: each costs device memory, owns what is made in it, and is current in threads. */
#include <stdlib.h>

#include "sim.h"

enum { FLAG_MASK = 0x1ff };

static __thread struct sim_context *stack[SIM_CONTEXT_STACK];
static __thread int depth;

int
sim_context_current(struct sim_context **out)
{
    *out = depth > 0 ? stack[depth - 1] : NULL;
    if (*out == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    return (*out)->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

int
sim_device_of_context(struct sim_device **device)
{
    struct sim_context *context;
    int result = sim_context_current(&context);
    if (result == CUDA_SUCCESS) {
        *device = context->device;
    }
    return result;
}

/* One buffer for the local memory of all threads that the GPU can hold. */
static uint64_t
local_memory(const struct sim_device *device, size_t stack_bytes)
{
    uint64_t threads = (uint64_t)device->facts->threads_per_sm * device->facts->sm_count;
    return sim_round((stack_bytes + 512) * threads);
}

static int
activate(struct sim_context *context)
{
    static uint64_t next_id;
    uint64_t bytes = context->device->facts->context_bytes;
    int result = sim_take(context->device, bytes);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    context->id = ++next_id;
    context->bytes = bytes;
    sim_limits_reset(context);
    context->local_bytes = local_memory(context->device, context->limits[0]);
    context->alive = 1;
    context->legacy = sim_object_new(SIM_STREAM, sizeof *context->legacy, context);
    context->legacy->is_legacy = 1;
    context->legacy->id = 1;
    cgpu_machine_count_context(sim_machine(), context->device->machine_index, 1);
    return CUDA_SUCCESS;
}

int
sim_context_create(struct sim_device *device, uint32_t flags, struct sim_context **out)
{
    if ((flags & ~(uint32_t)FLAG_MASK) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct sim_context *context = *out;
    if (context == NULL) {
        context = sim_object_new(SIM_CONTEXT, sizeof *context, NULL);
    }
    context->device = device;
    context->flags = flags;
    int result = activate(context);
    if (result != CUDA_SUCCESS && *out == NULL) {
        sim_object_delete(context);
        return result;
    }
    *out = context;
    return result;
}

static void
free_object(struct sim_object *object)
{
    switch (object->kind) {
    case SIM_STREAM:
        sim_stream_free((struct sim_stream *)object);
        break;
    case SIM_EVENT:
        sim_event_free((struct sim_event *)object);
        break;
    case SIM_MODULE:
        sim_module_unload((struct sim_module *)object);
        break;
    case SIM_ARRAY:
        sim_array_free((struct sim_array *)object);
        break;
    case SIM_MIPMAP:
        sim_mipmap_free((struct sim_mipmap *)object);
        break;
    default:
        sim_object_delete(object);
        break;
    }
}

static void
free_owned(struct sim_context *context, enum sim_kind kind)
{
    for (struct sim_object *i = sim_object_next(kind, NULL); i != NULL;) {
        if (i->owner == context) {
            free_object(i);
            i = sim_object_next(kind, NULL);
        } else {
            i = sim_object_next(kind, i);
        }
    }
}

static int
has_context(const struct sim_device *device)
{
    struct sim_context *context = NULL;
    do {
        context = sim_object_next(SIM_CONTEXT, context);
    } while (context != NULL && (context->device != device || !context->alive));
    return context != NULL;
}

/* The struct stays, so that threads in which it is current learn that it is gone. */
void
sim_context_destroy(struct sim_context *context)
{
    static const enum sim_kind owned[] = {SIM_STREAM, SIM_EVENT, SIM_MODULE, SIM_MIPMAP, SIM_ARRAY};
    struct sim_region *region;
    sim_context_wait(context);
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) {
        free_owned(context, owned[i]);
    }
    while ((region = sim_region_of(context)) != NULL) {
        sim_region_free(region);
    }
    sim_give(context->device, context->bytes);
    cgpu_machine_count_context(sim_machine(), context->device->machine_index, -1);
    context->bytes = 0;
    context->graph_bytes = 0;
    context->graph_taken = 0;
    context->has_library = context->has_heap = 0;
    context->peers = 0;
    context->alive = 0;
    if (!has_context(context->device)) {
        sim_pools_release(context->device);
        sim_graph_memory_trim(context->device);
    }
}

void
sim_context_push(struct sim_context *context)
{
    if (depth < SIM_CONTEXT_STACK) {
        stack[depth++] = context;
    }
}

static int
create(struct sim_context **out, uint32_t flags, int ordinal)
{
    struct sim_device *device = sim_device(ordinal);
    struct sim_context *context = NULL;
    if (device == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int result = sim_context_create(device, flags, &context);
    if (result == CUDA_SUCCESS) {
        sim_context_push(context);
        *out = context;
    }
    return result;
}

SIM_API(cuCtxCreate, (struct sim_context * *out, uint32_t flags, int device), (out, flags, device))
{
    return create(out, flags, device);
}

SIM_API(cuCtxCreate_v2, (struct sim_context * *out, uint32_t flags, int device),
        (out, flags, device))
{
    return create(out, flags, device);
}

SIM_API(cuCtxCreate_v3,
        (struct sim_context * *out, void *affinity, int count, uint32_t flags, int device),
        (out, affinity, count, flags, device))
{
    if (affinity != NULL || count != 0) {
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    }
    return create(out, flags, device);
}

static int
destroy(struct sim_context *context)
{
    if (sim_object_find(SIM_CONTEXT, context) == NULL || !context->alive || context->is_primary) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    sim_context_destroy(context);
    if (depth > 0 && stack[depth - 1] == context) {
        depth--;
    }
    return CUDA_SUCCESS;
}

SIM_API(cuCtxDestroy, (struct sim_context * context), (context))
{
    return destroy(context);
}

SIM_API(cuCtxDestroy_v2, (struct sim_context * context), (context))
{
    return destroy(context);
}

SIM_API(cuCtxAttach, (struct sim_context * *out, uint32_t flags), (out, flags))
{
    if (out == NULL || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int result = sim_context_current(out);
    if (result == CUDA_SUCCESS) {
        (*out)->attached++;
    }
    return result;
}

SIM_API(cuCtxDetach, (struct sim_context * context), (context))
{
    if (sim_object_find(SIM_CONTEXT, context) == NULL || !context->alive) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (context->attached > 0) {
        context->attached--;
        return CUDA_SUCCESS;
    }
    return destroy(context);
}

static int
push(struct sim_context *context)
{
    if (sim_object_find(SIM_CONTEXT, context) == NULL || depth == SIM_CONTEXT_STACK) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    sim_context_push(context);
    return CUDA_SUCCESS;
}

static int
pop(struct sim_context **out)
{
    if (depth == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    depth--;
    if (out != NULL) {
        *out = stack[depth];
    }
    return CUDA_SUCCESS;
}

SIM_API(cuCtxPushCurrent, (struct sim_context * context), (context))
{
    return push(context);
}

SIM_API(cuCtxPushCurrent_v2, (struct sim_context * context), (context))
{
    return push(context);
}

SIM_API(cuCtxPopCurrent, (struct sim_context * *out), (out))
{
    return pop(out);
}

SIM_API(cuCtxPopCurrent_v2, (struct sim_context * *out), (out))
{
    return pop(out);
}

SIM_API(cuCtxSetCurrent, (struct sim_context * context), (context))
{
    if (context != NULL && sim_object_find(SIM_CONTEXT, context) == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (depth > 0) {
        depth--;
    }
    return context == NULL ? CUDA_SUCCESS : push(context);
}

SIM_API(cuCtxGetCurrent, (struct sim_context * *out), (out))
{
    if (out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = depth > 0 ? stack[depth - 1] : NULL;
    return CUDA_SUCCESS;
}

/* The buffer grows to what the hungriest kernel needs, and never shrinks. */
int
sim_context_grow_local(struct sim_context *context, size_t bytes)
{
    uint64_t needed = local_memory(context->device, bytes);
    if (needed > context->local_bytes) {
        uint64_t more = needed - context->local_bytes;
        int result = sim_take(context->device, more);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        context->local_bytes = needed;
        context->bytes += more;
    }
    return CUDA_SUCCESS;
}
