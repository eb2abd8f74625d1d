/* Linear device memory: cuMemAlloc and its relatives. */
#include "sim.h"

enum { PITCH = 512 };

int
sim_linear_alloc(struct sim_context *context, uint64_t bytes, int low, struct sim_region **out)
{
    uint64_t address, taken = 0;
    struct sim_chunk *chunk = NULL;
    if (bytes <= SIM_SMALL) {
        int result = sim_small_alloc(context, bytes, low, &chunk, &address);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    } else {
        taken = sim_round(bytes);
        if (taken < bytes || sim_take(context->device, taken) != CUDA_SUCCESS) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        address = sim_pages_map(taken, SIM_GRANULE, low);
        if (address == 0) {
            sim_give(context->device, taken);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    struct sim_region *region = sim_region_add(address, bytes, SIM_LINEAR);
    region->context = context;
    region->device = context->device;
    region->chunk = chunk;
    region->taken = taken;
    *out = region;
    return CUDA_SUCCESS;
}

void
sim_linear_free(struct sim_region *region)
{
    if (region->chunk != NULL) {
        sim_small_free(region->context, region->chunk, region->base, region->bytes);
    } else {
        sim_pages_unmap(region->base, sim_round(region->bytes));
        sim_pages_return(region->device, region->taken);
    }
    sim_region_remove(region);
}

uint64_t *
sim_pages_of(struct sim_region *region, uint64_t *base, uint64_t *bytes)
{
    if (region->chunk != NULL) {
        *bytes = SIM_GRANULE;
        return sim_chunk_pages(region->chunk, base);
    }
    *base = region->base;
    *bytes = sim_round(region->bytes);
    return &region->taken;
}

void
sim_pages_return(struct sim_device *device, uint64_t taken)
{
    if ((taken & SIM_SHARED_PAGES) != 0) {
        cgpu_machine_object_release(sim_machine(), (uint32_t)taken);
    } else {
        sim_give(device, taken);
    }
}

/* What can be freed as a pointer, or must go with its context. */
int
sim_region_free(struct sim_region *region)
{
    sim_markers_forget(region->base, region->bytes);
    switch (region->kind) {
    case SIM_LINEAR:
        sim_linear_free(region);
        break;
    case SIM_POOLED:
        sim_pool_free(region);
        break;
    case SIM_GRAPH_MEMORY:
        sim_graph_memory_free(region);
        break;
    case SIM_MANAGED:
    case SIM_HOST:
        sim_give(region->device, region->taken);
        sim_pages_unmap(region->base, region->bytes);
        sim_region_remove(region);
        break;
    case SIM_IMPORTED:
        sim_pages_unmap(region->base, region->bytes);
        cgpu_machine_object_release(sim_machine(), region->shared - 1);
        sim_region_remove(region);
        break;
    default:
        sim_region_remove(region);
        break;
    }
    return CUDA_SUCCESS;
}

static int
allocate(uint64_t bytes, int low, uint64_t *address)
{
    struct sim_context *context;
    struct sim_region *region;
    int result = sim_context_current(&context);
    if (result == CUDA_SUCCESS) {
        result = bytes == 0 ? CUDA_ERROR_INVALID_VALUE : sim_capture_forbids();
    }
    if (result == CUDA_SUCCESS) {
        result = sim_linear_alloc(context, bytes, low, &region);
    }
    if (result == CUDA_SUCCESS) {
        *address = region->base;
    }
    return result;
}

SIM_API(cuMemAlloc_v2, (uint64_t *out, size_t bytes), (out, bytes))
{
    return out == NULL ? CUDA_ERROR_INVALID_VALUE : allocate(bytes, 0, out);
}

SIM_API(cuMemAlloc, (uint32_t *out, uint32_t bytes), (out, bytes))
{
    uint64_t address;
    int result = out == NULL ? CUDA_ERROR_INVALID_VALUE : allocate(bytes, 1, &address);
    if (result == CUDA_SUCCESS) {
        *out = (uint32_t)address;
    }
    return result;
}

static int
allocate_pitched(uint64_t width, uint64_t height, uint32_t element, int low, uint64_t *address,
                 uint64_t *pitch)
{
    if (width == 0 || height == 0 || (element != 4 && element != 8 && element != 16)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (width > (UINT64_MAX >> 2) / height) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *pitch = (width + PITCH - 1) / PITCH * PITCH;
    return allocate(*pitch * height, low, address);
}

SIM_API(cuMemAllocPitch_v2,
        (uint64_t *out, size_t *pitch, size_t width, size_t height, unsigned element),
        (out, pitch, width, height, element))
{
    if (out == NULL || pitch == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return allocate_pitched(width, height, element, 0, out, pitch);
}

SIM_API(cuMemAllocPitch,
        (uint32_t *out, uint32_t *pitch, uint32_t width, uint32_t height, unsigned element),
        (out, pitch, width, height, element))
{
    uint64_t address, wide_pitch;
    if (out == NULL || pitch == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int result = allocate_pitched(width, height, element, 1, &address, &wide_pitch);
    if (result == CUDA_SUCCESS) {
        *out = (uint32_t)address;
        *pitch = (uint32_t)wide_pitch;
    }
    return result;
}

static int
release(uint64_t address)
{
    int result = sim_capture_forbids();
    if (result != CUDA_SUCCESS || address == 0) {
        return result;
    }
    /* No context need be current: the address says whose it is (Numba relies on it at its end). */
    struct sim_region *region = sim_region_find(address);
    int freeable = region != NULL && region->base == address &&
                   (region->kind == SIM_LINEAR || region->kind == SIM_POOLED ||
                    region->kind == SIM_MANAGED || region->kind == SIM_GRAPH_MEMORY);
    if (!freeable) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    /* The driver waits: work in flight may use the memory. */
    uint64_t last = region->device->last_item;
    struct sim_device *device = region->device;
    sim_item_wait(device, last);
    region = sim_region_find(address);
    return region == NULL ? CUDA_ERROR_INVALID_VALUE : sim_region_free(region);
}

SIM_API(cuMemFree_v2, (uint64_t address), (address))
{
    return release(address);
}

SIM_API(cuMemFree, (uint32_t address), (address))
{
    return release(address);
}

SIM_API(cuMemAllocManaged, (uint64_t *out, size_t bytes, unsigned flags), (out, bytes, flags))
{
    struct sim_context *context;
    int result = sim_context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (out == NULL || bytes == 0 || (flags != 1 && flags != 2)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    /* Counted as if it were resident from the start; the real driver moves pages on demand. */
    uint64_t taken = sim_round(bytes);
    if (sim_take(context->device, taken) != CUDA_SUCCESS) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = sim_pages_map(taken, SIM_GRANULE, 0);
    if (*out == 0) {
        sim_give(context->device, taken);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct sim_region *region = sim_region_add(*out, taken, SIM_MANAGED);
    region->context = context;
    region->device = context->device;
    region->taken = taken;
    return CUDA_SUCCESS;
}

static int
memory_info(uint64_t *free_bytes, uint64_t *total)
{
    struct sim_device *device;
    int result = sim_device_of_context(&device);
    if (result == CUDA_SUCCESS) {
        uint64_t used = cgpu_machine_used(sim_machine(), device->machine_index);
        uint64_t all = device->facts->total_bytes - device->facts->reserved_bytes;
        *total = all;
        *free_bytes = used < all ? all - used : 0;
    }
    return result;
}

/* Either output may be left out, or both. */
SIM_API(cuMemGetInfo_v2, (size_t *free_bytes, size_t *total), (free_bytes, total))
{
    uint64_t unasked;
    return memory_info(free_bytes != NULL ? free_bytes : &unasked,
                       total != NULL ? total : &unasked);
}

static void
put_narrow(uint32_t *out, uint64_t bytes)
{
    if (out != NULL) {
        *out = bytes > UINT32_MAX ? UINT32_MAX : (uint32_t)bytes;
    }
}

SIM_API(cuMemGetInfo, (uint32_t *free_bytes, uint32_t *total), (free_bytes, total))
{
    uint64_t wide_free, wide_total;
    int result = memory_info(&wide_free, &wide_total);
    if (result == CUDA_SUCCESS) {
        put_narrow(free_bytes, wide_free);
        put_narrow(total, wide_total);
    }
    return result;
}
