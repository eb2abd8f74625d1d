/*
 * Allocating from a pool.
 *
 * The lock of pools is held from the time when the driver's figures are read before the call until
 * they are read after it. So this allocation caused all growth of the pool. The prediction may be
 * wrong in two ways. Another thread's free may make the predicted growth unnecessary; then the
 * charge is released after the call. The driver may reserve more than predicted; then that is
 * charged too, or the allocation is undone and refused.
 */
#include <time.h>

#include "entry/shim.h"
#include "memory/account.h"
#include "memory/charge.h"
#include "memory/pools/pool.h"
#include "memory/target.h"

enum { NAP_NS = 50000, NAPS = 200 /* 10 ms and more */ };
enum { FIRST_REPORT = 11030 /* the version of CUDA */ };

struct request {
    CUdeviceptr *dptr;
    size_t size;
    CUmemoryPool pool; /* NULL: the current one of the stream's device */
    CUstream stream;   /* as the program gave it, for the real function */
    CUstream asked;    /* the stream, with NULL replaced: for our own driver calls */
    CUresult (*real)(CUdeviceptr *, size_t, CUstream);
    CUresult (*real_from)(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
    int32_t gpu;
    bool refused; /* by us, not by the driver */
    CUmemoryPool
        grown; /* the pool that keeps memory of a refused call until the stream reaches its free */
};

static CUresult
call(const struct request *request)
{
    return request->real != NULL
               ? request->real(request->dptr, request->size, request->stream)
               : request->real_from(request->dptr, request->size, request->pool, request->stream);
}

/* Whether STREAM captures. If so, the call makes a graph node, and allocates nothing. */
static bool
is_captured(CUstream stream)
{
    int capture = CU_CAPTURE_NONE;
    return cgpu_real.cuStreamIsCapturing(stream, &capture) == CUDA_SUCCESS &&
           capture != CU_CAPTURE_NONE;
}

static bool
has_own_context(CUstream stream)
{
    return stream != NULL && stream != CU_STREAM_LEGACY_DEFAULT &&
           stream != CU_STREAM_PER_THREAD_DEFAULT;
}

/* The device of STREAM, whose context need not be the current one. */
static CUresult
device_of(CUstream stream, CUdevice *device)
{
    CUcontext current = NULL;
    CUcontext context = NULL;
    if (!has_own_context(stream) || cgpu_real.cuStreamGetCtx(stream, &context) != CUDA_SUCCESS ||
        cgpu_real.cuCtxGetCurrent(&current) != CUDA_SUCCESS || context == current ||
        cgpu_real.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS) {
        return cgpu_real.cuCtxGetDevice(device);
    }
    CUresult status = cgpu_real.cuCtxGetDevice(device);
    cgpu_real.cuCtxPopCurrent_v2(&context);
    return status;
}

/* How much the pool must grow at least for SIZE more bytes, in the driver's units. */
static uint64_t
predict(uint64_t reserved, uint64_t used, uint64_t size)
{
    uint64_t needed;
    if (__builtin_add_overflow(used, size, &needed) ||
        __builtin_add_overflow(needed, CGPU_BLOCK_BYTES - 1, &needed)) {
        return UINT64_MAX;
    }
    needed -= needed % CGPU_BLOCK_BYTES;
    return needed > reserved ? needed - reserved : 0;
}

/* Charge POOL for BYTES more. */
static CUresult
charge(struct cgpu_pool *pool, uint64_t bytes)
{
    uint64_t charged = 0;
    CUresult status = bytes != 0 ? cgpu_account_charge(pool->gpu, bytes, &charged) : CUDA_SUCCESS;
    cgpu_pool_grown(pool, charged);
    return status;
}

/* Charge what POOL has reserved beyond its account. */
static CUresult
catch_up(struct cgpu_pool *pool)
{
    uint64_t reserved = cgpu_pool_ask(pool->handle, CU_POOL_RESERVED_CURRENT, pool->charged);
    return charge(pool, reserved > pool->charged ? reserved - pool->charged : 0);
}

/*
 * The pool grew by more than is allowed: free the memory again, and charge what stays reserved
 * nevertheless. The driver releases that once the stream has reached the free and is synchronised.
 * Nobody waits for this under the lock: see give_up.
 */
static void
undo(struct request *request, struct cgpu_pool *pool)
{
    cgpu_real.cuMemFreeAsync(*request->dptr, request->asked);
    cgpu_pool_trim_idle(pool->handle);
    uint64_t reserved = cgpu_pool_ask(pool->handle, CU_POOL_RESERVED_CURRENT, pool->charged);
    if (reserved > pool->charged) {
        cgpu_account_force(pool->gpu, reserved - pool->charged);
        cgpu_pool_grown(pool, reserved - pool->charged);
        request->grown = pool->handle;
    }
}

/*
 * After a refused call: wait until the stream reaches the free of what the call left in the pool;
 * then that is released. The wait is short, because the stream may be waiting for this very thread,
 * and so for the end of the call. After the wait the memory stays charged, over the cap if it does
 * not fit, until the program synchronises or is refused again.
 */
static void
give_up(const struct request *request)
{
    const struct timespec time = {.tv_nsec = NAP_NS};
    int naps = 0;
    int mode = cgpu_capture_mode_relax();
    while (cgpu_real.cuStreamQuery(request->asked) != CUDA_SUCCESS && naps < NAPS) {
        nanosleep(&time, NULL);
        naps += 1;
    }
    if (naps < NAPS) {
        cgpu_real.cuStreamSynchronize(
            request->asked); /* at once; only here does the driver release it */
    }
    cgpu_capture_mode_restore(mode);
    pthread_mutex_lock(&cgpu_state->kinds.pools);
    struct cgpu_pool *pool = cgpu_pool_find(request->grown);
    if (pool != NULL) {
        cgpu_pool_trim_idle(pool->handle);
        cgpu_pool_measure(pool);
    }
    pthread_mutex_unlock(&cgpu_state->kinds.pools);
}

/*
 * After the call: bring POOL's account to what is reserved now. The driver reserves large pieces if
 * it can; the part of a piece that it does not need must not cause a refusal.
 */
static CUresult
follow(struct request *request, struct cgpu_pool *pool, CUresult status)
{
    if (status == CUDA_SUCCESS && catch_up(pool) != CUDA_SUCCESS) {
        cgpu_pool_trim_idle(pool->handle);
        status = catch_up(pool);
        if (status != CUDA_SUCCESS) {
            request->refused = true;
            undo(request, pool);
        }
    }
    cgpu_pool_measure(pool);
    return status;
}

/* Under the lock of pools: charge the predicted growth, and allocate. */
static CUresult
allocate(struct request *request, struct cgpu_pool *pool)
{
    request->gpu = pool->gpu;
    if ((pool->flags & CGPU_POOL_FREE) != 0) {
        return call(request);
    }
    if ((pool->flags & CGPU_POOL_DOOMED) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    cgpu_pool_measure(pool);
    uint64_t used = cgpu_pool_ask(pool->handle, CU_POOL_USED_CURRENT, pool->charged);
    CUresult status = charge(pool, predict(pool->charged, used, request->size));
    if (status != CUDA_SUCCESS) {
        request->refused = true;
        return status;
    }
    return follow(request, pool, call(request));
}

/* The device of a pool that cuMemPoolCreate did not make: it is the default pool of some device. */
static CUdevice
device_of_pool(CUmemoryPool handle, CUdevice device)
{
    CUmemoryPool pool;
    int count = 0;
    cgpu_real.cuDeviceGetCount(&count);
    for (CUdevice i = 0; i < count; i++) {
        if (cgpu_real.cuDeviceGetDefaultMemPool(&pool, i) == CUDA_SUCCESS && pool == handle) {
            return i;
        }
    }
    return device;
}

static CUresult
attempt(struct request *request, CUmemoryPool handle, CUdevice device)
{
    CUresult status = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&cgpu_state->kinds.pools);
    struct cgpu_pool *pool = cgpu_pool_find(handle);
    if (pool == NULL) {
        pool = cgpu_pool_add(handle, device_of_pool(handle, device), 0);
    }
    if (pool != NULL) {
        status = allocate(request, pool);
    }
    pthread_mutex_unlock(&cgpu_state->kinds.pools);
    if (request->grown != NULL) {
        give_up(request);
        request->grown = NULL;
    }
    return status;
}

static CUresult
allocate_somehow(struct request *request)
{
    CUdevice device;
    CUmemoryPool handle = request->pool;
    CUresult status = device_of(request->asked, &device);
    if (status == CUDA_SUCCESS && handle == NULL) {
        status = cgpu_real.cuDeviceGetMemPool(&handle, device);
    }
    if (status != CUDA_SUCCESS) {
        return status;
    }
    status = attempt(request, handle, device);
    if (request->refused && cgpu_reclaim(request->gpu, 0)) {
        request->refused = false;
        status = attempt(request, handle, device);
    }
    if (request->refused) {
        cgpu_log_memory(request->gpu, request->size);
    }
    return status;
}

/* The version does not change while the library is loaded, nor in forked children. */
bool
cgpu_pool_is_reported(void)
{
    static int known;                                        /* 0: not asked yet */
    int version = __atomic_load_n(&known, __ATOMIC_RELAXED); /* all threads find the same */
    if (version == 0 && cgpu_real.cuDriverGetVersion(&version) == CUDA_SUCCESS) {
        __atomic_store_n(&known, version, __ATOMIC_RELAXED);
    }
    return version == 0 || version >= FIRST_REPORT;
}

static CUresult
begin(struct request *request)
{
    struct cgpu_target target;
    CUresult status = cgpu_target_current(&target);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    if (request->dptr == NULL || (request->real == NULL && request->pool == NULL)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!cgpu_pool_is_reported()) {
        return cgpu_reject(CGPU_REJECT_POOLS,
                           request->real != NULL ? "cuMemAllocAsync" : "cuMemAllocFromPoolAsync");
    }
    return is_captured(request->asked) ? call(request) : allocate_somehow(request);
}

/* The stream that a program means by STREAM: in a _ptsz entry point, NULL is the thread's own. */
static CUstream
fill_in(CUstream stream, bool per_thread)
{
    return stream == NULL && per_thread ? CU_STREAM_PER_THREAD_DEFAULT : stream;
}

CUresult
cgpu_pool_alloc(CUresult (*real)(CUdeviceptr *, size_t, CUstream), CUdeviceptr *dptr, size_t size,
                CUstream stream)
{
    struct request request = {
        .dptr = dptr,
        .size = size,
        .stream = stream,
        .asked = fill_in(stream, real == cgpu_real.cuMemAllocAsync_ptsz),
        .real = real,
        .gpu = CGPU_NO_GPU,
    };
    return begin(&request);
}

CUresult
cgpu_pool_alloc_from(CUresult (*real)(CUdeviceptr *, size_t, CUmemoryPool, CUstream),
                     CUdeviceptr *dptr, size_t size, CUmemoryPool pool, CUstream stream)
{
    struct request request = {
        .dptr = dptr,
        .size = size,
        .pool = pool,
        .stream = stream,
        .asked = fill_in(stream, real == cgpu_real.cuMemAllocFromPoolAsync_ptsz),
        .real_from = real,
        .gpu = CGPU_NO_GPU,
    };
    return begin(&request);
}
