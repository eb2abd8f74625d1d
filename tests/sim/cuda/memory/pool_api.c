/* Pools by handle: made, set, asked, destroyed. */
#include <string.h>

#include "vmm.h"

enum { HANDLE_FD = 1, TYPE_PINNED = 1 };
enum { FIRST_REPORT = 11030 /* the version of CUDA that says what pools have reserved */ };
enum { /* CUmemPool_attribute */
       REUSE_FIRST = 1,
       REUSE_LAST = 3,
       RELEASE_THRESHOLD,
       RESERVED_CURRENT,
       RESERVED_HIGH,
       USED_CURRENT,
       USED_HIGH,
       ALLOCATION_TYPE, /* from here on: of CUDA 13 */
       HANDLE_TYPES,
       LOCATION_ID,
       LOCATION_TYPE,
       MAXIMUM
};

struct pool_properties { /* layout of CUmemPoolProps */
    uint32_t type, handle_types, location_type, location_id;
    void *security;
    size_t maximum;
    uint8_t reserved[56];
};

SIM_API(cuDeviceGetDefaultMemPool, (struct sim_pool * *out, int ordinal), (out, ordinal))
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

SIM_API(cuDeviceGetMemPool, (struct sim_pool * *out, int ordinal), (out, ordinal))
{
    struct sim_device *device = sim_device(ordinal);
    if (device == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = sim_pool_current(device);
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

struct location { /* layout of CUmemLocation */
    uint32_t type, id;
};

/* Of CUDA 13. A pool of a device, or of its only locality domain. */
static int
get_at(struct sim_pool **out, const struct location *location, int type,
       struct sim_pool *(*pool_of)(struct sim_device *))
{
    if (out == NULL || location == NULL || type != TYPE_PINNED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct sim_device *device = sim_device_at(location->type, location->id);
    if (device == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = pool_of(device);
    return CUDA_SUCCESS;
}

SIM_API(cuMemGetDefaultMemPool, (struct sim_pool * *out, const struct location *location, int type),
        (out, location, type))
{
    return get_at(out, location, type, sim_pool_default);
}

SIM_API(cuMemGetMemPool, (struct sim_pool * *out, const struct location *location, int type),
        (out, location, type))
{
    return get_at(out, location, type, sim_pool_current);
}

SIM_API(cuMemPoolCreate, (struct sim_pool * *out, const struct pool_properties *properties),
        (out, properties))
{
    if (out == NULL || properties == NULL || properties->type != TYPE_PINNED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (properties->location_type != SIM_LOCATION_DEVICE &&
        properties->location_type != SIM_LOCATION_LOCALITY_DOMAIN) {
        sim_log("pools in host memory are not simulated");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    struct sim_device *device = sim_device_at(properties->location_type, properties->location_id);
    if (device == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if ((properties->handle_types & ~(uint32_t)HANDLE_FD) != 0) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    *out = sim_pool_new(device);
    (*out)->handle_types = properties->handle_types;
    (*out)->maximum = sim_round(properties->maximum);
    return CUDA_SUCCESS;
}

SIM_API(cuMemPoolDestroy, (struct sim_pool * handle), (handle))
{
    struct sim_pool *pool = sim_object_find(SIM_POOL, handle);
    if (pool == NULL || pool->is_default || pool->destroyed) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (pool->device->pool == pool) {
        pool->device->pool = NULL;
    }
    pool->destroyed = 1;
    sim_pool_trim(pool, 0);
    sim_pool_drop_if_unused(pool);
    return CUDA_SUCCESS;
}

SIM_API(cuMemPoolTrimTo, (struct sim_pool * handle, size_t keep), (handle, keep))
{
    struct sim_pool *pool = sim_object_find(SIM_POOL, handle);
    if (pool == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_pool_trim(pool, keep);
    return CUDA_SUCCESS;
}

SIM_API(cuMemPoolGetAttribute, (struct sim_pool * handle, unsigned attribute, void *out),
        (handle, attribute, out))
{
    struct sim_pool *pool = sim_object_find(SIM_POOL, handle);
    uint32_t last =
        cgpu_machine_cuda_version(sim_machine()) < FIRST_REPORT ? RELEASE_THRESHOLD : MAXIMUM;
    if (pool == NULL || out == NULL || attribute < REUSE_FIRST || attribute > last) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (attribute <= REUSE_LAST) {
        memcpy(out, &pool->reuse[attribute - REUSE_FIRST], sizeof(int));
        return CUDA_SUCCESS;
    }
    /* The maximum of an imported pool is the system's. */
    uint64_t maximum = pool->is_import ? pool->device->facts->total_bytes : pool->maximum;
    const uint64_t values[] = {
        pool->threshold,     pool->reserved, pool->reserved_high, pool->used,
        pool->used_high,     TYPE_PINNED,    pool->handle_types,  pool->device->ordinal,
        SIM_LOCATION_DEVICE, maximum,
    };
    int is_wide = attribute <= USED_HIGH || attribute == MAXIMUM;
    memcpy(out, &values[attribute - RELEASE_THRESHOLD], is_wide ? sizeof *values : sizeof(int));
    return CUDA_SUCCESS;
}

SIM_API(cuMemPoolSetAttribute, (struct sim_pool * handle, unsigned attribute, const void *value),
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

SIM_API(cuMemPoolSetAccess, (struct sim_pool * handle, const struct access *list, size_t count),
        (handle, list, count))
{
    struct sim_pool *pool = sim_object_find(SIM_POOL, handle);
    if (pool == NULL || list == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; i++) {
        int own = list[i].location_id == pool->device->ordinal;
        if (list[i].location_type != SIM_LOCATION_DEVICE || (own && list[i].flags != 3)) {
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
