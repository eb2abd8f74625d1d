/*
 * Pools that processes share. From the moment when a pool's descriptor is exported, all that the
 * pool has reserved counts as exported (sharing.h). Other processes import its allocations one by
 * one.
 */
#include "entry/shim.h"
#include "ledger/sharing.h"
#include "memory/charge.h"
#include "memory/location.h"
#include "memory/physical/share.h"
#include "memory/pools/pool.h"

static struct cgpu_kinds *
kinds(void)
{
    return &cgpu_state->kinds;
}

CUresult
cgpu_pool_export(CUresult (*real)(void *, CUmemoryPool, int, uint64_t), void *out,
                 CUmemoryPool handle, int type, uint64_t flags)
{
    CUresult status = real(out, handle, type, flags);
    if (status != CUDA_SUCCESS || type != CU_HANDLE_POSIX_FD || !cgpu_state_is_attached()) {
        return status;
    }
    pthread_mutex_lock(&kinds()->pools);
    struct cgpu_pool *pool = cgpu_pool_find(handle);
    if (pool != NULL && pool->gpu >= 0 && (pool->flags & CGPU_POOL_EXPORTED) == 0 &&
        cgpu_sharing_export(cgpu_state->ledger, (uint32_t)pool->gpu, pool->charged) == CGPU_OK) {
        pool->flags |= CGPU_POOL_EXPORTED;
    }
    pthread_mutex_unlock(&kinds()->pools);
    return status;
}

/*
 * Import a pool. The pool costs nothing; the allocations that this process imports from it are
 * charged.
 */
CUresult
cgpu_pool_import(CUresult (*real)(CUmemoryPool *, void *, int, uint64_t), CUmemoryPool *pool,
                 void *handle, int type, uint64_t flags)
{
    CUresult status = real(pool, handle, type, flags);
    if (status == CUDA_SUCCESS && pool != NULL && cgpu_state_is_attached()) {
        uint32_t fabric = type == CU_HANDLE_FABRIC ? CGPU_POOL_FABRIC : 0;
        pthread_mutex_lock(&kinds()->pools);
        if (cgpu_pool_find(*pool) == NULL) {
            (void)cgpu_pool_add(*pool, 0, CGPU_POOL_CREATED | CGPU_POOL_FREE | fabric);
        }
        pthread_mutex_unlock(&kinds()->pools);
    }
    return status;
}

static bool
is_fabric(CUmemoryPool handle)
{
    pthread_mutex_lock(&kinds()->pools);
    const struct cgpu_pool *pool = cgpu_pool_find(handle);
    bool fabric = pool != NULL && (pool->flags & CGPU_POOL_FABRIC) != 0;
    pthread_mutex_unlock(&kinds()->pools);
    return fabric;
}

static CUresult
import_pointer(CUresult (*real)(CUdeviceptr *, CUmemoryPool, void *), CUdeviceptr *address,
               CUmemoryPool pool, void *shared, struct cgpu_lack *lack)
{
    *lack = (struct cgpu_lack){.bytes = 0};
    CUresult status = real(address, pool, shared);
    if (status != CUDA_SUCCESS || is_fabric(pool)) {
        return status;
    }
    cgpu_kinds_count(&kinds()->pool_imports, 1);
    status = cgpu_share_note_opened(*address, 0, false, lack);
    if (status != CUDA_SUCCESS) {
        cgpu_real.cuMemFree_v2(*address);
    }
    return status;
}

/* Import an allocation. No context owns it, because pools do not go with contexts. */
CUresult
cgpu_pool_import_pointer(CUresult (*real)(CUdeviceptr *, CUmemoryPool, void *),
                         CUdeviceptr *address, CUmemoryPool pool, void *shared)
{
    struct cgpu_lack lack;
    if (address == NULL || !cgpu_state_is_attached()) {
        return real(address, pool, shared);
    }
    CUresult status = import_pointer(real, address, pool, shared, &lack);
    if (lack.bytes != 0) {
        cgpu_reclaim_shared(&lack);
        status = import_pointer(real, address, pool, shared, &lack);
    }
    if (lack.bytes != 0) {
        cgpu_log_memory(lack.gpu, lack.bytes);
    }
    return status;
}
