/* Where memory lies, and pools by location (CUDA 13). */
#include "memory/location.h"
#include "entry/shim.h"
#include "memory/pool.h"

bool
cgpu_location_is_host(const struct cgpu_mem_location *location)
{
    return location->type >= CU_LOCATION_HOST && location->type <= CU_LOCATION_HOST_NUMA_CURRENT;
}

bool
cgpu_location_device(const struct cgpu_mem_location *location, CUdevice *device)
{
    bool domain = location->type == CU_LOCATION_LOCALITY_DOMAIN;
    *device = domain ? location->id & 0xff : location->id;
    return domain || location->type == CU_LOCATION_DEVICE;
}

CUresult
cgpu_location_check(int allocation_type, const struct cgpu_mem_location *location, const char *name)
{
    CUdevice device;
    if (allocation_type == CU_ALLOCATION_MANAGED) {
        return cgpu_reject(CGPU_REJECT_MANAGED, name);
    }
    if (allocation_type < CU_ALLOCATION_PINNED || location->type < CU_LOCATION_DEVICE) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (allocation_type > CU_ALLOCATION_MANAGED ||
        (!cgpu_location_is_host(location) && !cgpu_location_device(location, &device))) {
        return cgpu_reject(CGPU_REJECT_UNKNOWN, name);
    }
    return CUDA_SUCCESS;
}

CUresult
cgpu_location_of_imported(CUmemGenericAllocationHandle handle, int32_t *gpu)
{
    struct cgpu_mem_properties properties = {0};
    CUdevice device;
    *gpu = CGPU_NO_GPU;
    if (cgpu_real.cuMemGetAllocationPropertiesFromHandle(&properties, handle) != CUDA_SUCCESS ||
        properties.location.type < CU_LOCATION_DEVICE ||
        properties.location.type == CU_LOCATION_INVISIBLE) {
        return CUDA_SUCCESS;
    }
    CUresult status = cgpu_location_check(properties.type, &properties.location,
                                          "cuMemImportFromShareableHandle");
    if (status == CUDA_SUCCESS && cgpu_location_device(&properties.location, &device)) {
        *gpu = cgpu_device_gpu(device);
    }
    return status;
}

/*
 * A device's own pool is learnt when something is allocated from it. That of a locality domain may
 * be another one: nobody but this call says whose it is.
 */
static void
keep(CUmemoryPool pool, const struct cgpu_mem_location *location)
{
    CUdevice device = 0;
    bool charged = cgpu_location_device(location, &device);
    if (location->type == CU_LOCATION_DEVICE || !cgpu_state_is_attached()) {
        return;
    }
    pthread_mutex_lock(&cgpu_state->kinds.pools);
    if (cgpu_pool_find(pool) == NULL) {
        (void)cgpu_pool_add(pool, device, charged ? 0 : CGPU_POOL_FREE);
    }
    pthread_mutex_unlock(&cgpu_state->kinds.pools);
}

static CUresult
get(CUresult (*real)(CUmemoryPool *, struct cgpu_mem_location *, int), CUmemoryPool *pool,
    struct cgpu_mem_location *location, int type, const char *name)
{
    CUresult status = location != NULL ? cgpu_location_check(type, location, name) : CUDA_SUCCESS;
    if (status != CUDA_SUCCESS) {
        return status;
    }
    status = real(pool, location, type);
    if (status == CUDA_SUCCESS && pool != NULL && location != NULL) {
        keep(*pool, location);
    }
    return status;
}

CUresult
cgpu_pool_get_default(CUresult (*real)(CUmemoryPool *, struct cgpu_mem_location *, int),
                      CUmemoryPool *pool, struct cgpu_mem_location *location, int type)
{
    return get(real, pool, location, type, "cuMemGetDefaultMemPool");
}

CUresult
cgpu_pool_get_current(CUresult (*real)(CUmemoryPool *, struct cgpu_mem_location *, int),
                      CUmemoryPool *pool, struct cgpu_mem_location *location, int type)
{
    return get(real, pool, location, type, "cuMemGetMemPool");
}

CUresult
cgpu_pool_set_current(CUresult (*real)(struct cgpu_mem_location *, int, CUmemoryPool),
                      struct cgpu_mem_location *location, int type, CUmemoryPool pool)
{
    CUresult status =
        location != NULL ? cgpu_location_check(type, location, "cuMemSetMemPool") : CUDA_SUCCESS;
    return status != CUDA_SUCCESS ? status : real(location, type, pool);
}
