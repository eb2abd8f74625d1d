/*
 * Memory pools. What a pool has reserved is charged, whether it is used or not.
 *
 * The driver reports what is reserved, and the account follows that. Before an allocation, the
 * growth that it must cause is charged; after it, what the driver really reserved (pool_alloc.c).
 * Only allocations make a pool grow, and all of them hold the lock of pools. A pool shrinks when it
 * is trimmed or destroyed, and at synchronisation. Until that is measured, the account is too high,
 * never too low.
 *
 * When a pool is destroyed while its memory is in use, or freed in a stream that has not reached
 * the free, the pool remains until all of it is free, but the driver no longer reports on it. So
 * its real destruction is delayed until it is empty. Meanwhile it is "doomed": it keeps nothing in
 * reserve, and the program cannot use it.
 */
#include "memory/pools/pool.h"
#include "entry/shim.h"
#include "ledger/sharing.h"
#include "memory/account.h"
#include "memory/location.h"

static struct cgpu_kinds *
kinds(void)
{
    return &cgpu_state->kinds;
}

uint64_t
cgpu_pool_ask(CUmemoryPool pool, int attribute, uint64_t unknown)
{
    uint64_t value = 0;
    CUresult status = cgpu_real.cuMemPoolGetAttribute(pool, attribute, &value);
    return status == CUDA_SUCCESS ? value : unknown;
}

struct cgpu_pool *
cgpu_pool_find(CUmemoryPool handle)
{
    for (uint32_t i = 0; handle != NULL && i < kinds()->pool_bound; i++) {
        if (kinds()->pool[i].handle == handle) {
            return &kinds()->pool[i];
        }
    }
    return NULL;
}

static struct cgpu_pool *
free_entry(void)
{
    for (uint32_t i = 0; i < CGPU_MAX_POOLS; i++) {
        if (kinds()->pool[i].handle == NULL) {
            if (i >= kinds()->pool_bound) {
                cgpu_kinds_count(&kinds()->pool_bound, 1);
            }
            return &kinds()->pool[i];
        }
    }
    return NULL;
}

struct cgpu_pool *
cgpu_pool_add(CUmemoryPool handle, CUdevice device, uint32_t flags)
{
    struct cgpu_pool *pool = free_entry();
    if (pool != NULL) {
        *pool = (struct cgpu_pool){
            .handle = handle, .device = device, .flags = flags, .gpu = CGPU_NO_GPU};
        if ((flags & CGPU_POOL_FREE) == 0) {
            pool->gpu = cgpu_device_gpu(device);
            pool->threshold = cgpu_pool_ask(handle, CU_POOL_RELEASE_THRESHOLD, 0);
        }
    }
    return pool;
}

/* Let sync.c know that a synchronisation may make POOL smaller. */
static void
note(const struct cgpu_pool *pool)
{
    if (pool->charged > pool->threshold || (pool->flags & CGPU_POOL_DOOMED) != 0) {
        /* relaxed: a thread that misses it measures at the next synchronisation */
        __atomic_store_n(&kinds()->may_shrink, 1, __ATOMIC_RELAXED);
    }
}

void
cgpu_pool_trim_idle(CUmemoryPool pool)
{
    int mode = cgpu_capture_mode_relax();
    cgpu_real.cuMemPoolTrimTo(pool, 0);
    cgpu_capture_mode_restore(mode);
}

/*
 * Whether destroying POOL would release all of it. Memory that was freed in a stream is not used,
 * but it is reserved until the stream has reached the free and is synchronised. A pool that can be
 * exported keeps all of its memory reserved, so for such a pool this only shows that nothing is
 * used.
 */
static bool
is_empty(const struct cgpu_pool *pool)
{
    cgpu_pool_trim_idle(pool->handle);
    return cgpu_pool_ask(pool->handle, CU_POOL_USED_CURRENT, 1) == 0 &&
           ((pool->flags & CGPU_POOL_SHARED) != 0 ||
            cgpu_pool_ask(pool->handle, CU_POOL_RESERVED_CURRENT, 1) == 0);
}

/* If the pool is doomed and empty now, destroy it. Returns whether it is destroyed. */
static bool
bury(const struct cgpu_pool *pool)
{
    if ((pool->flags & CGPU_POOL_DOOMED) == 0 || !is_empty(pool)) {
        return false;
    }
    int mode = cgpu_capture_mode_relax();
    CUresult status = cgpu_real.cuMemPoolDestroy(pool->handle);
    cgpu_capture_mode_restore(mode);
    return status == CUDA_SUCCESS;
}

void
cgpu_pool_grown(struct cgpu_pool *pool, uint64_t bytes)
{
    pool->charged += bytes;
    if ((pool->flags & CGPU_POOL_EXPORTED) != 0 && bytes != 0) {
        (void)cgpu_sharing_export(cgpu_state->ledger, (uint32_t)pool->gpu, bytes);
    }
}

/*
 * Lower POOL's account to RESERVED. Processes that have imported from the released part pay for it
 * from now on.
 */
static void
shrink_to(struct cgpu_pool *pool, uint64_t reserved)
{
    uint64_t bytes = reserved < pool->charged ? pool->charged - reserved : 0;
    if (bytes != 0 && (pool->flags & CGPU_POOL_EXPORTED) != 0) {
        cgpu_sharing_end_export(cgpu_state->ledger, (uint32_t)pool->gpu, bytes, bytes);
    } else if (bytes != 0) {
        cgpu_account_release(pool->gpu, bytes);
    }
    pool->charged -= bytes;
}

static void
forget(struct cgpu_pool *pool)
{
    shrink_to(pool, 0);
    pool->handle = NULL;
}

void
cgpu_pool_measure(struct cgpu_pool *pool)
{
    if (pool->handle == NULL || (pool->flags & CGPU_POOL_FREE) != 0) {
        return;
    }
    if (bury(pool)) {
        forget(pool);
        return;
    }
    shrink_to(pool, cgpu_pool_ask(pool->handle, CU_POOL_RESERVED_CURRENT, pool->charged));
    note(pool);
}

void
cgpu_pool_measure_all(void)
{
    for (uint32_t i = 0; i < kinds()->pool_bound; i++) {
        cgpu_pool_measure(&kinds()->pool[i]);
    }
}

static void
measure_under_lock(void)
{
    pthread_mutex_lock(&kinds()->pools);
    cgpu_pool_measure_all();
    pthread_mutex_unlock(&kinds()->pools);
}

void
cgpu_pool_collect(void)
{
    if (cgpu_kinds_look(&kinds()->may_shrink) != 0) {
        measure_under_lock();
    }
}

void
cgpu_pool_context_gone(void)
{
    if (cgpu_kinds_look(&kinds()->pool_bound) != 0) {
        measure_under_lock();
    }
}

void
cgpu_pool_trim(int32_t gpu)
{
    pthread_mutex_lock(&kinds()->pools);
    for (uint32_t i = 0; i < kinds()->pool_bound; i++) {
        struct cgpu_pool *pool = &kinds()->pool[i];
        if (pool->handle != NULL && pool->gpu == gpu && pool->charged != 0) {
            cgpu_real.cuMemPoolTrimTo(pool->handle, 0);
        }
        cgpu_pool_measure(pool);
    }
    pthread_mutex_unlock(&kinds()->pools);
}

/* Record a pool that was created. Pools in host memory cost nothing. */
static CUresult
keep(CUmemoryPool handle, const struct cgpu_pool_properties *properties)
{
    CUdevice device;
    bool charged = cgpu_location_device(&properties->location, &device);
    uint32_t flags = CGPU_POOL_CREATED | (charged ? 0 : CGPU_POOL_FREE) |
                     (properties->handle_types != 0 ? CGPU_POOL_SHARED : 0);
    pthread_mutex_lock(&kinds()->pools);
    struct cgpu_pool *stale = cgpu_pool_find(handle);
    if (stale != NULL) {
        forget(stale);
    }
    struct cgpu_pool *pool = cgpu_pool_add(handle, device, flags);
    pthread_mutex_unlock(&kinds()->pools);
    return pool != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult
cgpu_pool_create(CUresult (*real)(CUmemoryPool *, const struct cgpu_pool_properties *),
                 CUmemoryPool *pool, const struct cgpu_pool_properties *properties)
{
    if (pool == NULL || properties == NULL || !cgpu_state_is_attached()) {
        return real(pool, properties);
    }
    CUresult status =
        cgpu_location_check(properties->type, &properties->location, "cuMemPoolCreate");
    if (status != CUDA_SUCCESS) {
        return status;
    }
    status = real(pool, properties);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    status = keep(*pool, properties);
    if (status != CUDA_SUCCESS) {
        cgpu_real.cuMemPoolDestroy(*pool);
    }
    return status;
}

/*
 * If POOL is current, make the default pool current before POOL is destroyed, as the driver would.
 */
static void
replace_current(const struct cgpu_pool *pool)
{
    CUmemoryPool current = NULL;
    if (cgpu_real.cuDeviceGetMemPool(&current, pool->device) == CUDA_SUCCESS &&
        current == pool->handle &&
        cgpu_real.cuDeviceGetDefaultMemPool(&current, pool->device) == CUDA_SUCCESS) {
        cgpu_real.cuDeviceSetMemPool(pool->device, current);
    }
}

static void
doom(struct cgpu_pool *pool)
{
    uint64_t nothing = 0;
    replace_current(pool);
    pool->flags |= CGPU_POOL_DOOMED;
    pool->threshold = 0;
    cgpu_real.cuMemPoolSetAttribute(pool->handle, CU_POOL_RELEASE_THRESHOLD, &nothing);
    cgpu_pool_measure(pool);
}

/* Under the lock of pools: destroy the pool if it is empty, otherwise doom it. */
static CUresult
destroy(CUresult (*real)(CUmemoryPool), CUmemoryPool handle)
{
    struct cgpu_pool *pool = cgpu_pool_find(handle);
    if (pool == NULL || (pool->flags & CGPU_POOL_CREATED) == 0) {
        return real(handle);
    }
    if ((pool->flags & CGPU_POOL_DOOMED) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if ((pool->flags & CGPU_POOL_FREE) == 0 && !is_empty(pool)) {
        doom(pool);
        return CUDA_SUCCESS;
    }
    CUresult status = real(handle);
    if (status == CUDA_SUCCESS) {
        forget(pool);
    }
    return status;
}

CUresult
cgpu_pool_destroy(CUresult (*real)(CUmemoryPool), CUmemoryPool handle)
{
    if (!cgpu_state_is_attached()) {
        return real(handle);
    }
    pthread_mutex_lock(&kinds()->pools);
    CUresult status = destroy(real, handle);
    pthread_mutex_unlock(&kinds()->pools);
    return status;
}

CUresult
cgpu_pool_trim_to(CUresult (*real)(CUmemoryPool, size_t), CUmemoryPool pool, size_t bytes)
{
    CUresult status = real(pool, bytes);
    if (status == CUDA_SUCCESS && cgpu_state_is_attached()) {
        measure_under_lock();
    }
    return status;
}

CUresult
cgpu_pool_set_attribute(CUresult (*real)(CUmemoryPool, int, void *), CUmemoryPool handle,
                        int attribute, void *value)
{
    CUresult status = real(handle, attribute, value);
    if (status != CUDA_SUCCESS || attribute != CU_POOL_RELEASE_THRESHOLD || value == NULL ||
        !cgpu_state_is_attached()) {
        return status;
    }
    pthread_mutex_lock(&kinds()->pools);
    struct cgpu_pool *pool = cgpu_pool_find(handle);
    if (pool != NULL && (pool->flags & CGPU_POOL_FREE) == 0) {
        pool->threshold = *(const uint64_t *)value;
        cgpu_pool_measure(pool);
    }
    pthread_mutex_unlock(&kinds()->pools);
    return status;
}
