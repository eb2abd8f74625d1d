/* Host memory: pinned, registered. It costs no device memory. */
#include "sim.h"

static int
allocate(void **out, uint64_t bytes, unsigned flags)
{
    struct sim_context *context;
    int result = sim_context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (out == NULL || bytes == 0 || flags > 7) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    uint64_t address = sim_pages_map(bytes, 4096, 0);
    if (address == 0) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct sim_region *region = sim_region_add(address, bytes, SIM_HOST);
    region->context = context;
    region->device = context->device;
    region->flags = flags;
    *out = (void *)(uintptr_t)address;
    return CUDA_SUCCESS;
}

SIM_API(cuMemAllocHost_v2, (void **out, size_t bytes), (out, bytes))
{
    return allocate(out, bytes, 0);
}

SIM_API(cuMemAllocHost, (void **out, uint32_t bytes), (out, bytes))
{
    return allocate(out, bytes, 0);
}

SIM_API(cuMemHostAlloc, (void **out, size_t bytes, unsigned flags), (out, bytes, flags))
{
    return allocate(out, bytes, flags);
}

static struct sim_region *
find_host(const void *pointer)
{
    struct sim_region *region = sim_region_find((uint64_t)(uintptr_t)pointer);
    int is_host = region != NULL && (region->kind == SIM_HOST || region->kind == SIM_REGISTERED);
    return is_host ? region : NULL;
}

SIM_API(cuMemFreeHost, (void *pointer), (pointer))
{
    struct sim_region *region = find_host(pointer);
    if (region == NULL || region->kind != SIM_HOST ||
        region->base != (uint64_t)(uintptr_t)pointer) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return sim_region_free(region);
}

static int
register_host(void *pointer, uint64_t bytes, unsigned flags)
{
    struct sim_context *context;
    int result = sim_context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (pointer == NULL || bytes == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct sim_region *region = sim_region_add((uint64_t)(uintptr_t)pointer, bytes, SIM_REGISTERED);
    if (region == NULL) {
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    }
    region->context = context;
    region->device = context->device;
    region->flags = flags;
    return CUDA_SUCCESS;
}

SIM_API(cuMemHostRegister, (void *pointer, uint32_t bytes, unsigned flags), (pointer, bytes, flags))
{
    return register_host(pointer, bytes, flags);
}

SIM_API(cuMemHostRegister_v2, (void *pointer, size_t bytes, unsigned flags),
        (pointer, bytes, flags))
{
    return register_host(pointer, bytes, flags);
}

SIM_API(cuMemHostUnregister, (void *pointer), (pointer))
{
    struct sim_region *region = find_host(pointer);
    if (region == NULL || region->kind != SIM_REGISTERED ||
        region->base != (uint64_t)(uintptr_t)pointer) {
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    }
    return sim_region_free(region);
}

SIM_API(cuMemHostGetDevicePointer_v2, (uint64_t *out, void *pointer, unsigned flags),
        (out, pointer, flags))
{
    if (out == NULL || flags != 0 || find_host(pointer) == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = (uint64_t)(uintptr_t)pointer;
    return CUDA_SUCCESS;
}

SIM_API(cuMemHostGetFlags, (unsigned *out, void *pointer), (out, pointer))
{
    struct sim_region *region = find_host(pointer);
    if (out == NULL || region == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = region->flags;
    return CUDA_SUCCESS;
}
