/* Pools by location (CUDA 13): those in host memory cost nothing, managed ones are refused. */
#include "entry/shim.h"
#include "memory/pool.h"

/* A pool in device memory is learnt when something is allocated from it. */
static CUresult
keep(CUresult status, const CUmemoryPool *pool, const struct cgpu_mem_location *location)
{
    if (status == CUDA_SUCCESS && location->type != CU_LOCATION_DEVICE &&
        cgpu_state_is_attached()) {
        pthread_mutex_lock(&cgpu_state->kinds.pools);
        if (cgpu_pool_find(*pool) == NULL) {
            (void)cgpu_pool_add(*pool, 0, CGPU_POOL_FREE);
        }
        pthread_mutex_unlock(&cgpu_state->kinds.pools);
    }
    return status;
}

CUresult
cgpu_pool_get_default(CUresult (*real)(CUmemoryPool *, struct cgpu_mem_location *, int),
                      CUmemoryPool *pool, struct cgpu_mem_location *location, int type)
{
    CUresult status = cgpu_pool_refuse_managed(type, "cuMemGetDefaultMemPool");
    return status != CUDA_SUCCESS ? status : keep(real(pool, location, type), pool, location);
}

CUresult
cgpu_pool_get_current(CUresult (*real)(CUmemoryPool *, struct cgpu_mem_location *, int),
                      CUmemoryPool *pool, struct cgpu_mem_location *location, int type)
{
    CUresult status = cgpu_pool_refuse_managed(type, "cuMemGetMemPool");
    return status != CUDA_SUCCESS ? status : keep(real(pool, location, type), pool, location);
}

CUresult
cgpu_pool_set_current(CUresult (*real)(struct cgpu_mem_location *, int, CUmemoryPool),
                      struct cgpu_mem_location *location, int type, CUmemoryPool pool)
{
    CUresult status = cgpu_pool_refuse_managed(type, "cuMemSetMemPool");
    return status != CUDA_SUCCESS ? status : real(location, type, pool);
}
