/* Pools shared between processes: a pool goes by descriptor, each allocation by 64 bytes. */
#include <string.h>
#include <sys/mman.h>

#include "sim.h"

enum { HANDLE_FD = 1 };

#define SHARE_MAGIC 0x70706f6f6c736dull

struct share { /* the 64 bytes of CUmemPoolPtrExportData */
    uint64_t magic, tag, bytes;
    uint32_t object;
    uint8_t reserved[36];
};

/*
 * Memory of a pool that can be exported is an object of the machine from the start. So each
 * allocation has pages to itself, and a pool may grow although it has reserved more than is used.
 */
int
sim_pool_alloc_shared(struct sim_pool *pool, struct sim_context *context, uint64_t bytes,
                      uint64_t *out)
{
    uint32_t object;
    uint64_t size = sim_round(bytes);
    struct cgpu_machine *machine = sim_machine();
    if (size < bytes || (pool->maximum != 0 && pool->reserved + size > pool->maximum) ||
        cgpu_machine_object_create(machine, pool->device->machine_index, size, &object) !=
            CGPU_MACHINE_OK) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    void *mapped = cgpu_machine_object_map(machine, object, NULL, 0, size);
    if (mapped == MAP_FAILED) {
        cgpu_machine_object_release(machine, object);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = (uint64_t)(uintptr_t)mapped;
    struct sim_region *region = sim_region_add(*out, bytes, SIM_POOLED);
    region->context = context;
    region->device = pool->device;
    region->pool = pool;
    region->shared = object + 1;
    sim_pool_count(pool, (int64_t)sim_pool_used(bytes), (int64_t)size);
    return CUDA_SUCCESS;
}

/* SHARED: number + 1 of the object that they are; 0: the pool keeps what is behind them. */
void
sim_pool_pages_return(struct sim_pool *pool, uint64_t base, uint64_t bytes, uint32_t shared)
{
    uint64_t size = shared != 0 ? sim_round(bytes) : bytes;
    sim_pages_unmap(base, size);
    if (shared != 0) {
        cgpu_machine_object_release(sim_machine(), shared - 1);
        sim_pool_count(pool, 0, -(int64_t)size);
    }
}

/* The descriptor of a pool is that of an object without bytes. */
SIM_API(cuMemPoolExportToShareableHandle,
        (int *out, struct sim_pool *handle, unsigned type, unsigned long long flags),
        (out, handle, type, flags))
{
    struct sim_pool *pool = sim_object_find(SIM_POOL, handle);
    if (out == NULL || pool == NULL || flags != 0 || type != HANDLE_FD ||
        pool->handle_types != HANDLE_FD) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (pool->mark == 0) {
        uint32_t object;
        int status =
            cgpu_machine_object_create(sim_machine(), pool->device->machine_index, 0, &object);
        if (status != CGPU_MACHINE_OK) {
            return CUDA_ERROR_OPERATING_SYSTEM;
        }
        pool->mark = object + 1;
    }
    *out = cgpu_machine_object_export(sim_machine(), pool->mark - 1);
    return *out < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

SIM_API(cuMemPoolImportFromShareableHandle,
        (struct sim_pool * *out, void *os_handle, unsigned type, unsigned long long flags),
        (out, os_handle, type, flags))
{
    uint32_t object, index;
    if (out == NULL || type != HANDLE_FD || flags != 0 ||
        cgpu_machine_object_import(sim_machine(), (int)(intptr_t)os_handle, &object) !=
            CGPU_MACHINE_OK) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (cgpu_machine_object_gpu(sim_machine(), object, &index) != CGPU_MACHINE_OK) {
        cgpu_machine_object_release(sim_machine(), object);
        return CUDA_ERROR_INVALID_DEVICE;
    }
    struct sim_device *device = NULL;
    for (uint32_t i = 0; i < sim_device_count(); i++) {
        device = sim_device((int)i)->machine_index == index ? sim_device((int)i) : device;
    }
    if (device == NULL) {
        cgpu_machine_object_release(sim_machine(), object);
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *out = sim_object_new(SIM_POOL, sizeof **out, NULL);
    (*out)->device = device;
    (*out)->mark = object + 1;
    (*out)->is_import = 1;
    return CUDA_SUCCESS;
}

SIM_API(cuMemPoolExportPointer, (struct share * out, uint64_t address), (out, address))
{
    struct sim_region *region = sim_region_find(address);
    if (out == NULL || region == NULL || region->base != address || region->kind != SIM_POOLED ||
        region->shared == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memset(out, 0, sizeof *out);
    out->magic = SHARE_MAGIC;
    out->object = region->shared - 1;
    out->tag = cgpu_machine_object_tag(sim_machine(), out->object);
    out->bytes = region->bytes;
    return CUDA_SUCCESS;
}

SIM_API(cuMemPoolImportPointer, (uint64_t *out, struct sim_pool *handle, const struct share *share),
        (out, handle, share))
{
    struct sim_pool *pool = sim_object_find(SIM_POOL, handle);
    struct cgpu_machine *machine = sim_machine();
    if (out == NULL || pool == NULL || share == NULL || !pool->is_import ||
        share->magic != SHARE_MAGIC ||
        cgpu_machine_object_retain(machine, share->object) != CGPU_MACHINE_OK) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    void *mapped = MAP_FAILED;
    uint64_t bytes = cgpu_machine_object_bytes(machine, share->object);
    if (cgpu_machine_object_tag(machine, share->object) == share->tag && share->bytes <= bytes) {
        mapped = cgpu_machine_object_map(machine, share->object, NULL, 0, bytes);
    }
    if (mapped == MAP_FAILED) {
        cgpu_machine_object_release(machine, share->object);
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = (uint64_t)(uintptr_t)mapped;
    struct sim_region *region = sim_region_add(*out, share->bytes, SIM_POOLED);
    region->device = pool->device;
    region->pool = pool;
    region->shared = share->object + 1;
    sim_pool_count(pool, (int64_t)bytes, (int64_t)bytes);
    return CUDA_SUCCESS;
}
