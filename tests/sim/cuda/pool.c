/*
 * Stream-ordered memory. A pool holds ("reserves") more than is used: it grows by chunks and gives the
 * unused back at synchronisation, down to its release threshold, or when it is trimmed.
 */
#include <string.h>

#include "sim.h"

enum { CHUNK = 32 << 20, HANDLE_FD = 1, TYPE_PINNED = 1, LOCATION_DEVICE = 1 };
enum { /* CUmemPool_attribute */
    REUSE_FIRST = 1, REUSE_LAST = 3, RELEASE_THRESHOLD, RESERVED_CURRENT, RESERVED_HIGH,
    USED_CURRENT, USED_HIGH,
};

struct pool_properties { /* layout of CUmemPoolProps */
    uint32_t type, handle_types, location_type, location_id;
    void *security;
    size_t maximum;
    uint8_t reserved[56];
};

static struct sim_pool *
new_pool(struct sim_device *device)
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
        device->default_pool = new_pool(device);
        device->default_pool->is_default = 1;
    }
    return device->default_pool;
}

static struct sim_pool *
current_pool(struct sim_device *device)
{
    return device->pool != NULL ? device->pool : sim_pool_default(device);
}

static uint64_t
used_size(uint64_t bytes)
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

int
sim_pool_alloc(struct sim_pool *pool, struct sim_context *context, uint64_t bytes, uint64_t *out)
{
    uint64_t size = used_size(bytes);
    if (size < bytes) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (pool->used + size > pool->reserved) {
        int result = grow(pool, pool->used + size - pool->reserved);
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
    pool->used += size;
    pool->used_high = pool->used > pool->used_high ? pool->used : pool->used_high;
    pool->reserved_high =
        pool->reserved > pool->reserved_high ? pool->reserved : pool->reserved_high;
    *out = address;
    return CUDA_SUCCESS;
}

static void
trim(struct sim_pool *pool, uint64_t keep)
{
    uint64_t floor = keep < pool->reserved ? keep : pool->reserved;
    floor = sim_round(pool->used > floor ? pool->used : floor);
    if (pool->reserved > floor) {
        sim_give(pool->device, pool->reserved - floor);
        pool->reserved = floor;
    }
}

/* A destroyed pool lives until the last of its memory is freed. */
static void
drop_if_unused(struct sim_pool *pool)
{
    if (pool->destroyed && pool->used == 0) {
        trim(pool, 0);
        sim_object_delete(pool);
    }
}

void
sim_pool_free(struct sim_region *region)
{
    struct sim_pool *pool = region->pool;
    pool->used -= used_size(region->bytes);
    sim_pages_unmap(region->base, region->bytes);
    sim_region_remove(region);
    drop_if_unused(pool);
}

void
sim_pools_trim(struct sim_device *device)
{
    struct sim_pool *pool = NULL;
    while ((pool = sim_object_next(SIM_POOL, pool)) != NULL) {
        if (pool->device == device) {
            trim(pool, pool->threshold);
        }
    }
}

void
sim_pools_release(struct sim_device *device)
{
    struct sim_pool *pool = NULL;
    while ((pool = sim_object_next(SIM_POOL, pool)) != NULL) {
        if (pool->device == device) {
            trim(pool, 0);
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
        return sim_pool_alloc(named != NULL ? named : current_pool(context->device), context,
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
    return capturing ? sim_capture_add(stream, &operation) : sim_region_free(region);
}

SIM_API(cuDeviceGetDefaultMemPool, (struct sim_pool **out, int ordinal), (out, ordinal))
{
    struct sim_device *device = sim_device(ordinal);
    if (device == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = sim_pool_default(device);
    return CUDA_SUCCESS;
}

SIM_API(cuDeviceGetMemPool, (struct sim_pool **out, int ordinal), (out, ordinal))
{
    struct sim_device *device = sim_device(ordinal);
    if (device == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = current_pool(device);
    return CUDA_SUCCESS;
}

SIM_API(cuDeviceSetMemPool, (int ordinal, struct sim_pool *handle), (ordinal, handle))
{
    struct sim_device *device = sim_device(ordinal);
    struct sim_pool *pool = sim_object_find(SIM_POOL, handle);
    if (device == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (pool == NULL || pool->device != device) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    device->pool = pool;
    return CUDA_SUCCESS;
}

SIM_API(cuMemPoolCreate, (struct sim_pool **out, const struct pool_properties *properties),
        (out, properties))
{
    if (out == NULL || properties == NULL || properties->type != TYPE_PINNED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (properties->location_type != LOCATION_DEVICE) {
        sim_log("pools in host memory are not simulated");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    struct sim_device *device = sim_device((int)properties->location_id);
    if (device == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if ((properties->handle_types & ~(uint32_t)HANDLE_FD) != 0) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    *out = new_pool(device);
    (*out)->handle_types = properties->handle_types;
    (*out)->maximum = sim_round(properties->maximum);
    return CUDA_SUCCESS;
}

SIM_API(cuMemPoolDestroy, (struct sim_pool *handle), (handle))
{
    struct sim_pool *pool = sim_object_find(SIM_POOL, handle);
    if (pool == NULL || pool->is_default || pool->destroyed) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (pool->device->pool == pool) {
        pool->device->pool = NULL;
    }
    pool->destroyed = 1;
    trim(pool, 0);
    drop_if_unused(pool);
    return CUDA_SUCCESS;
}

SIM_API(cuMemPoolTrimTo, (struct sim_pool *handle, size_t keep), (handle, keep))
{
    struct sim_pool *pool = sim_object_find(SIM_POOL, handle);
    if (pool == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    trim(pool, keep);
    return CUDA_SUCCESS;
}

SIM_API(cuMemPoolGetAttribute, (struct sim_pool *handle, unsigned attribute, void *out),
        (handle, attribute, out))
{
    struct sim_pool *pool = sim_object_find(SIM_POOL, handle);
    if (pool == NULL || out == NULL || attribute < REUSE_FIRST || attribute > USED_HIGH) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (attribute <= REUSE_LAST) {
        memcpy(out, &pool->reuse[attribute - REUSE_FIRST], sizeof(int));
        return CUDA_SUCCESS;
    }
    const uint64_t values[] = {pool->threshold, pool->reserved, pool->reserved_high, pool->used,
                               pool->used_high};
    memcpy(out, &values[attribute - RELEASE_THRESHOLD], sizeof *values);
    return CUDA_SUCCESS;
}

SIM_API(cuMemPoolSetAttribute, (struct sim_pool *handle, unsigned attribute, const void *value),
        (handle, attribute, value))
{
    struct sim_pool *pool = sim_object_find(SIM_POOL, handle);
    uint64_t wide = 0;
    if (pool == NULL || value == NULL || attribute < REUSE_FIRST || attribute > USED_HIGH) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (attribute <= REUSE_LAST) {
        memcpy(&pool->reuse[attribute - REUSE_FIRST], value, sizeof(int));
        return CUDA_SUCCESS;
    }
    memcpy(&wide, value, sizeof wide);
    if (attribute == RELEASE_THRESHOLD) {
        pool->threshold = wide;
    } else if (wide == 0 && attribute == RESERVED_HIGH) {
        pool->reserved_high = pool->reserved;
    } else if (wide == 0 && attribute == USED_HIGH) {
        pool->used_high = pool->used;
    } else {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

struct access { /* layout of CUmemAccessDesc */
    uint32_t location_type, location_id, flags;
};

SIM_API(cuMemPoolSetAccess, (struct sim_pool *handle, const struct access *list, size_t count),
        (handle, list, count))
{
    struct sim_pool *pool = sim_object_find(SIM_POOL, handle);
    if (pool == NULL || list == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; i++) {
        int own = list[i].location_id == pool->device->ordinal;
        if (list[i].location_type != LOCATION_DEVICE || (own && list[i].flags != 3)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (sim_device((int)list[i].location_id) == NULL) {
            return CUDA_ERROR_INVALID_DEVICE;
        }
    }
    return CUDA_SUCCESS;
}

SIM_API(cuMemPoolGetAccess, (uint32_t *flags, struct sim_pool *handle, const struct access *where),
        (flags, handle, where))
{
    if (flags == NULL || where == NULL || sim_object_find(SIM_POOL, handle) == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *flags = 3;
    return CUDA_SUCCESS;
}
