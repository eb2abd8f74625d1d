/* Pools by location (CUDA 13). */
#include "entry/shim.h"
#include "memory/location.h"
#include "memory/pools/pool.h"

/*
 * Record POOL. A device's own pool becomes known when something is allocated from it. But the pool
 * of a locality domain may be another one, and only this call shows whose it is.
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
