/*
 * Stream-ordered memory. A pool holds ("reserves") more than is used: it grows by chunks and gives
 * the unused back at synchronisation, down to its release threshold, or when it is trimmed. What
 * was freed in a stream that has not got there is in between (pool_free.c).
 */
#include "sim.h"

enum { CHUNK = 32 << 20 };

struct sim_pool *
sim_pool_new(struct sim_device *device)
{
    struct sim_pool *pool = sim_object_new(SIM_POOL, sizeof *pool, NULL);
    pool->device = device;
    pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
    return pool;
}

struct sim_pool *
sim_pool_default(struct sim_device *device)
{
    if (device->default_pool == NULL) {
        device->default_pool = sim_pool_new(device);
        device->default_pool->is_default = 1;
    }
    return device->default_pool;
}

struct sim_pool *
sim_pool_current(struct sim_device *device)
{
    return device->pool != NULL ? device->pool : sim_pool_default(device);
}

uint64_t
sim_pool_used(uint64_t bytes)
{
    return (bytes + 511) & ~(uint64_t)511;
}

/* A whole chunk if the GPU has it, else just what is missing. */
static int
grow(struct sim_pool *pool, uint64_t missing)
{
    uint64_t exact = sim_round(missing);
    uint64_t chunk = exact < CHUNK ? CHUNK : exact;
    if (pool->maximum != 0 && pool->reserved + chunk > pool->maximum) {
        chunk = exact;
    }
    if (pool->maximum != 0 && pool->reserved + chunk > pool->maximum) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (chunk != exact && sim_take(pool->device, chunk) != CUDA_SUCCESS) {
        chunk = exact;
    } else if (chunk != exact) {
        pool->reserved += chunk;
        return CUDA_SUCCESS;
    }
    int result = sim_take(pool->device, exact);
    pool->reserved += result == CUDA_SUCCESS ? exact : 0;
    return result;
}

void
sim_pool_count(struct sim_pool *pool, int64_t used, int64_t reserved)
{
    pool->used += (uint64_t)used;
    pool->reserved += (uint64_t)reserved;
    pool->used_high = pool->used > pool->used_high ? pool->used : pool->used_high;
    pool->reserved_high =
        pool->reserved > pool->reserved_high ? pool->reserved : pool->reserved_high;
}

int
sim_pool_alloc(struct sim_pool *pool, struct sim_stream *stream, uint64_t bytes, uint64_t *out)
{
    struct sim_context *context = stream->object.owner;
    if (pool->is_import) {
        return CUDA_ERROR_INVALID_VALUE; /* only its owner allocates */
    }
    if (pool->handle_types != 0) {
        return sim_pool_alloc_shared(pool, context, bytes, out);
    }
    uint64_t size = sim_pool_used(bytes);
    if (size < bytes) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    uint64_t room = pool->reserved - pool->used - pool->freed + sim_pool_reusable(pool, stream);
    if (size > room) {
        int result = grow(pool, size - room);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    uint64_t address = sim_pages_map(size, 4096, 0);
    if (address == 0) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct sim_region *region = sim_region_add(address, bytes, SIM_POOLED);
    region->context = context;
    region->device = pool->device;
    region->pool = pool;
    sim_pool_reuse(pool, stream, size);
    sim_pool_count(pool, (int64_t)size, 0);
    *out = address;
    return CUDA_SUCCESS;
}

void
sim_pool_trim(struct sim_pool *pool, uint64_t keep)
{
    uint64_t floor = keep < pool->reserved ? keep : pool->reserved;
    uint64_t held = pool->used + pool->freed;
    floor = sim_round(held > floor ? held : floor);
    int is_shared = pool->handle_types != 0 || pool->is_import; /* all of it is in use */
    if (pool->reserved > floor && !is_shared) {
        sim_give(pool->device, pool->reserved - floor);
        pool->reserved = floor;
    }
}

/* A destroyed pool lives until the last of its memory is freed, and streams have got there. */
void
sim_pool_drop_if_unused(struct sim_pool *pool)
{
    if (pool->destroyed && pool->used == 0 && pool->frees == 0) {
        sim_pool_trim(pool, 0);
        if (pool->mark != 0) {
            cgpu_machine_object_release(sim_machine(), pool->mark - 1);
        }
        sim_object_delete(pool);
    }
}

void
sim_pool_free(struct sim_region *region)
{
    struct sim_pool *pool = region->pool;
    sim_pool_count(pool, -(int64_t)sim_pool_used(region->bytes), 0);
    sim_pool_pages_return(pool, region->base, region->bytes, region->shared);
    sim_region_remove(region);
    sim_pool_drop_if_unused(pool);
}

void
sim_pools_trim(struct sim_device *device)
{
    struct sim_pool *pool = NULL;
    sim_pool_frees_finish();
    while ((pool = sim_object_next(SIM_POOL, pool)) != NULL) {
        if (pool->device == device) {
            sim_pool_trim(pool, pool->threshold);
        }
    }
}

void
sim_pools_release(struct sim_device *device)
{
    struct sim_pool *pool = NULL;
    sim_pool_frees_finish();
    while ((pool = sim_object_next(SIM_POOL, pool)) != NULL) {
        if (pool->device == device) {
            sim_pool_trim(pool, 0);
        }
    }
}

static int
allocate(uint64_t *out, uint64_t bytes, struct sim_pool *named, void *stream_handle)
{
    struct sim_stream *stream;
    int capturing;
    int result = sim_stream_find(stream_handle, &stream);
    if (result == CUDA_SUCCESS) {
        result = sim_capture_enqueue(stream, &capturing);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (out == NULL || bytes == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct sim_context *context = stream->object.owner;
    if (!capturing) {
        return sim_pool_alloc(named != NULL ? named : sim_pool_current(context->device), stream,
                              bytes, out);
    }
    struct sim_operation operation = {.type = SIM_OP_ALLOC};
    result = sim_graph_memory_node(context, bytes, &operation);
    if (result == CUDA_SUCCESS) {
        *out = operation.memory.address;
        result = sim_capture_add(stream, &operation);
    }
    return result;
}

SIM_API_PER_THREAD(cuMemAllocAsync, _ptsz, (uint64_t *out, size_t bytes, void *stream),
                   (out, bytes, stream))
{
    return allocate(out, bytes, NULL, stream);
}

SIM_API_PER_THREAD(cuMemAllocFromPoolAsync, _ptsz,
                   (uint64_t *out, size_t bytes, struct sim_pool *handle, void *stream),
                   (out, bytes, handle, stream))
{
    struct sim_pool *pool = sim_object_find(SIM_POOL, handle);
    return pool == NULL ? CUDA_ERROR_INVALID_VALUE : allocate(out, bytes, pool, stream);
}

SIM_API_PER_THREAD(cuMemFreeAsync, _ptsz, (uint64_t address, void *stream_handle),
                   (address, stream_handle))
{
    struct sim_stream *stream;
    struct sim_operation operation = {.type = SIM_OP_FREE};
    struct sim_region *region = sim_region_find(address);
    int capturing;
    int result = sim_stream_find(stream_handle, &stream);
    if (result == CUDA_SUCCESS) {
        result = sim_capture_enqueue(stream, &capturing);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (region == NULL || region->base != address || region->kind > SIM_GRAPH_MEMORY) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    operation.memory.address = address;
    if (capturing) {
        return sim_capture_add(stream, &operation);
    }
    return region->kind == SIM_POOLED ? sim_pool_free_in(address, stream) : sim_region_free(region);
}
