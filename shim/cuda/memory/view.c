/* What the container is shown: its cap as the GPU's memory, and its own use. */
#include "entry/shim.h"
#include "memory/charge.h"
#include "memory/location.h"
#include "memory/pools/pool.h"
#include "memory/target.h"

/*
 * The cap, and what is left of it, in whole pieces. 0 is left if ledger and bypass exceed the cap.
 */
static void
view(int32_t gpu, uint64_t *available, uint64_t *total)
{
    cgpu_reclaim_collect();
    *total = cgpu_device_cap(gpu);
    uint64_t used = gpu < 0 ? 0 : cgpu_ledger_used(cgpu_state->ledger, (uint32_t)gpu);
    uint64_t room = cgpu_device_room(gpu);
    uint64_t free = used < room ? room - used : 0;
    *available = gpu < 0 ? 0 : free - free % cgpu_state->granularity[gpu];
}

/* BYTES, or the most that fits into the 32 bits of the v1 entry points. */
static unsigned int
narrow(uint64_t bytes)
{
    return bytes < UINT32_MAX ? (unsigned int)bytes : UINT32_MAX;
}

/*
 * Show the memory. A program may leave out one of the outputs. If it leaves out both, the driver
 * answers.
 */
CUresult
cgpu_view_memory(CUresult (*real)(size_t *, size_t *), size_t *available, size_t *total)
{
    int32_t gpu;
    uint64_t cap;
    uint64_t left;
    CUresult status = cgpu_target_current_gpu(&gpu);
    if (status != CUDA_SUCCESS || (available == NULL && total == NULL)) {
        return status != CUDA_SUCCESS ? status : real(NULL, NULL);
    }
    view(gpu, &left, &cap);
    if (available != NULL) {
        *available = left;
    }
    if (total != NULL) {
        *total = cap;
    }
    return CUDA_SUCCESS;
}

CUresult
cgpu_view_memory_v1(CUresult (*real)(unsigned int *, unsigned int *), unsigned int *available,
                    unsigned int *total)
{
    int32_t gpu;
    uint64_t cap;
    uint64_t left;
    CUresult status = cgpu_target_current_gpu(&gpu);
    if (status != CUDA_SUCCESS || (available == NULL && total == NULL)) {
        return status != CUDA_SUCCESS ? status : real(NULL, NULL);
    }
    view(gpu, &left, &cap);
    if (available != NULL) {
        *available = narrow(left);
    }
    if (total != NULL) {
        *total = narrow(cap);
    }
    return CUDA_SUCCESS;
}

CUresult
cgpu_view_total(CUresult (*real)(size_t *, CUdevice), size_t *total, CUdevice device)
{
    size_t all;
    CUresult status = real(total != NULL ? &all : NULL, device);
    if (status == CUDA_SUCCESS && total != NULL) {
        *total = cgpu_device_cap(cgpu_device_gpu(device));
    }
    return status;
}

CUresult
cgpu_view_total_v1(CUresult (*real)(unsigned int *, CUdevice), unsigned int *total, CUdevice device)
{
    unsigned int all;
    CUresult status = real(total != NULL ? &all : NULL, device);
    if (status == CUDA_SUCCESS && total != NULL) {
        *total = narrow(cgpu_device_cap(cgpu_device_gpu(device)));
    }
    return status;
}

CUresult
cgpu_view_attribute(CUresult (*real)(int *, int, CUdevice), int *value, int attribute,
                    CUdevice device)
{
    CUresult status = real(value, attribute, device);
    if (status != CUDA_SUCCESS || value == NULL) {
        return status;
    }
    switch (attribute) {
    case CU_ATTRIBUTE_MANAGED_MEMORY:
    case CU_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS:
    case CU_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_ATTRIBUTE_PAGEABLE_USES_HOST_PAGE_TABLES:
    case CU_ATTRIBUTE_DIRECT_MANAGED_ACCESS_FROM_HOST:
        *value = 0;
        return CUDA_SUCCESS;
    case CU_ATTRIBUTE_MEMORY_POOLS:
        *value = cgpu_pool_is_reported() ? *value : 0;
        return CUDA_SUCCESS;
    default:
        return CUDA_SUCCESS;
    }
}

/* The most that POOL may be shown to hold: the cap. A pool in host memory has no limit. */
static uint64_t
most_of(CUmemoryPool pool)
{
    CUdevice device;
    struct cgpu_mem_location location = {
        .type = (int)cgpu_pool_ask(pool, CU_POOL_LOCATION_TYPE, 0),
        .id = (int)cgpu_pool_ask(pool, CU_POOL_LOCATION_ID, 0),
    };
    (void)cgpu_location_device(&location, &device);
    return cgpu_location_is_host(&location) ? UINT64_MAX : cgpu_device_cap(cgpu_device_gpu(device));
}

/*
 * Show an attribute of POOL. An imported pool may have all memory of the GPU as its maximum; 0: no
 * maximum is set.
 */
CUresult
cgpu_view_pool(CUresult (*real)(CUmemoryPool, int, void *), CUmemoryPool pool, int attribute,
               void *value)
{
    uint64_t maximum;
    if (attribute != CU_POOL_MAXIMUM || value == NULL) {
        return real(pool, attribute, value);
    }
    CUresult status = real(pool, attribute, &maximum);
    if (status == CUDA_SUCCESS) {
        uint64_t most = most_of(pool);
        *(uint64_t *)value = maximum < most ? maximum : most;
    }
    return status;
}
