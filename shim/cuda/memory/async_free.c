/*
 * Linear memory that was passed to cuMemFreeAsync. The driver takes it back when its stream is next
 * synchronised. Until then it stays charged, and a small allocation keeps its units in its block.
 * Memory from a pool goes back to the pool, whose whole reserve is charged (pool.c).
 */
#define _GNU_SOURCE /* syscall */
#include "memory/async_free.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "entry/shim.h"
#include "memory/account.h"
#include "memory/physical/share.h"
#include "memory/pools/pool.h"
#include "memory/small.h"

static struct cgpu_kinds *
kinds(void)
{
    return &cgpu_state->kinds;
}

static bool
is_empty(const struct cgpu_async_freed *freed)
{
    return freed->bytes == 0 && freed->small == 0;
}

/*
 * The calling thread if STREAM is the per-thread default stream, which is another one for each
 * thread; else 0.
 */
static uint32_t
thread_of(CUstream stream)
{
    return stream == CU_STREAM_PER_THREAD_DEFAULT ? (uint32_t)syscall(SYS_gettid) : 0;
}

static bool
is_default(CUstream stream)
{
    return stream == CU_STREAM_LEGACY_DEFAULT || stream == CU_STREAM_PER_THREAD_DEFAULT;
}

/* The context whose synchronisation also synchronises STREAM. It need not be the current one. */
static CUcontext
context_of(CUstream stream)
{
    CUcontext context = NULL;
    if (is_default(stream) || cgpu_real.cuStreamGetCtx(stream, &context) != CUDA_SUCCESS) {
        cgpu_real.cuCtxGetCurrent(&context);
    }
    return context;
}

/* Whether FREED is for STREAM. CONTEXT and THREAD distinguish default streams. */
static bool
is_in(const struct cgpu_async_freed *freed, CUstream stream, CUcontext context, uint32_t thread)
{
    return stream != NULL && freed->stream == stream && freed->thread == thread &&
           (!is_default(stream) || freed->context == context);
}

/*
 * The entry for memory freed in STREAM that is charged like HOLDING. If the table is full, an entry
 * of the same context, owner and GPU is used for several streams from then on. NULL: there is none.
 */
static struct cgpu_async_freed *
entry(CUstream stream, CUcontext context, const struct cgpu_holding *holding)
{
    int32_t gpu = (int32_t)holding->gpu;
    uint32_t thread = thread_of(stream);
    struct cgpu_async_freed *free_one = NULL;
    struct cgpu_async_freed *alike = NULL;
    for (uint32_t i = 0; i < kinds()->freed_bound; i++) {
        struct cgpu_async_freed *freed = &kinds()->freed[i];
        if (is_empty(freed)) {
            free_one = free_one != NULL ? free_one : freed;
        } else if (freed->context == context && freed->owner == holding->owner &&
                   freed->gpu == gpu) {
            if (is_in(freed, stream, context, thread)) {
                return freed;
            }
            alike = alike == NULL || freed->stream == CGPU_SEVERAL_STREAMS ? freed : alike;
        }
    }
    if (free_one == NULL && kinds()->freed_bound < CGPU_MAX_ASYNC_FREED) {
        free_one = &kinds()->freed[kinds()->freed_bound++];
    }
    if (free_one != NULL) {
        *free_one = (struct cgpu_async_freed){.stream = stream,
                                              .context = context,
                                              .owner = holding->owner,
                                              .gpu = gpu,
                                              .thread = thread};
    } else if (alike != NULL) {
        alike->stream = CGPU_SEVERAL_STREAMS;
        alike->thread = 0;
    }
    return free_one != NULL ? free_one : alike;
}

/* Put a small allocation at the head of FREED's chain. False: there is no memory for it. */
static bool
chain(struct cgpu_async_freed *freed, const struct cgpu_holding *holding)
{
    struct cgpu_holding link = *holding;
    link.kind = CGPU_KIND_FREED;
    link.owner = 0;
    link.bytes = freed->small;
    if (cgpu_holdings_insert(cgpu_state->holdings, &link) != CGPU_OK) {
        return false;
    }
    freed->small = holding->handle;
    return true;
}

static void
release(struct cgpu_async_freed *freed)
{
    struct cgpu_holding link;
    cgpu_account_release(freed->gpu, freed->bytes);
    freed->bytes = 0;
    while (freed->small != 0 && cgpu_account_take(CGPU_KIND_FREED, freed->small, &link)) {
        cgpu_small_gone(&link);
        freed->small = link.bytes;
    }
    freed->small = 0;
}

static void
keep_until_synchronised(const struct cgpu_holding *holding, CUstream stream)
{
    CUcontext context = context_of(stream);
    pthread_mutex_lock(&kinds()->pools);
    struct cgpu_async_freed *freed = entry(stream, context, holding);
    bool kept = freed != NULL && (cgpu_small_bytes(holding) == 0 || chain(freed, holding));
    if (kept) {
        freed->bytes += holding->bytes;
        __atomic_store_n(&kinds()->may_shrink, 1, __ATOMIC_RELAXED);
    }
    /*
     * If that failed, it stays charged for good, and small memory keeps its units: too much rather
     * than too little.
     */
    pthread_mutex_unlock(&kinds()->pools);
}

/*
 * Under the lock of pools: give back what was freed in STREAM or in CONTEXT, one of which was
 * synchronised, or in GONE, a context that was destroyed.
 */
static void
collect(CUstream stream, CUcontext context, CUcontext gone)
{
    uint64_t owner = (uint64_t)(uintptr_t)gone;
    uint32_t thread = thread_of(stream);
    CUcontext current = NULL;
    if (stream != NULL) {
        cgpu_real.cuCtxGetCurrent(&current);
    }
    for (uint32_t i = 0; i < kinds()->freed_bound; i++) {
        struct cgpu_async_freed *freed = &kinds()->freed[i];
        bool of_context = (context != NULL && freed->context == context) ||
                          (gone != NULL && (freed->context == gone || freed->owner == owner));
        if (is_empty(freed)) {
            continue;
        }
        if (of_context || is_in(freed, stream, current, thread)) {
            release(freed);
        } else {
            __atomic_store_n(&kinds()->may_shrink, 1, __ATOMIC_RELAXED);
        }
    }
}

void
cgpu_async_free_collect(CUstream stream, CUcontext context)
{
    pthread_mutex_lock(&kinds()->pools);
    collect(stream, context, NULL);
    pthread_mutex_unlock(&kinds()->pools);
}

void
cgpu_async_free_context_gone(CUcontext context)
{
    pthread_mutex_lock(&kinds()->pools);
    collect(NULL, NULL, context);
    pthread_mutex_unlock(&kinds()->pools);
}

/*
 * Whether all work in STREAM has ended. If so, synchronise STREAM. Call this under the lock of
 * pools, so that nobody destroys STREAM meanwhile. A stream that captures is left alone.
 */
static bool
is_done(CUstream stream)
{
    return !cgpu_captures(stream) && cgpu_real.cuStreamQuery(stream) == CUDA_SUCCESS &&
           cgpu_real.cuStreamSynchronize(stream) == CUDA_SUCCESS;
}

static bool
is_freed_in(CUstream stream)
{
    for (uint32_t i = 0; i < kinds()->freed_bound; i++) {
        if (!is_empty(&kinds()->freed[i]) && kinds()->freed[i].stream == stream) {
            return true;
        }
    }
    return false;
}

/*
 * STREAM was destroyed before its work ended, so nobody can synchronise it any more: give its
 * memory back when its context is synchronised.
 */
static void
leave(CUstream stream)
{
    for (uint32_t i = 0; i < kinds()->freed_bound; i++) {
        struct cgpu_async_freed *freed = &kinds()->freed[i];
        if (!is_empty(freed) && freed->stream == stream) {
            freed->stream = CGPU_SEVERAL_STREAMS;
            __atomic_store_n(&kinds()->may_shrink, 1, __ATOMIC_RELAXED);
        }
    }
}

CUresult
cgpu_async_free_destroy(CUresult (*destroy)(CUstream), CUstream stream)
{
    int mode = cgpu_capture_mode_relax();
    pthread_mutex_lock(&kinds()->pools);
    bool works = is_freed_in(stream) && !is_done(stream);
    cgpu_capture_mode_restore(mode);
    CUresult status = destroy(stream);
    if (status == CUDA_SUCCESS && works) {
        leave(stream);
    } else if (status == CUDA_SUCCESS) {
        collect(stream, NULL, NULL);
    }
    pthread_mutex_unlock(&kinds()->pools);
    return status;
}

/* Leaves out threads' own default streams, which other threads cannot query. */
void
cgpu_async_free_finish(int32_t gpu)
{
    CUcontext current = NULL;
    if (cgpu_kinds_look(&kinds()->may_shrink) == 0 ||
        cgpu_real.cuCtxGetCurrent(&current) != CUDA_SUCCESS || current == NULL) {
        return;
    }
    pthread_mutex_lock(&kinds()->pools);
    for (uint32_t i = 0; i < kinds()->freed_bound; i++) {
        struct cgpu_async_freed *freed = &kinds()->freed[i];
        if (!is_empty(freed) && freed->gpu == gpu && freed->context == current &&
            freed->stream != CU_STREAM_PER_THREAD_DEFAULT &&
            freed->stream != CGPU_SEVERAL_STREAMS && is_done(freed->stream)) {
            collect(freed->stream, NULL, NULL);
        }
    }
    pthread_mutex_unlock(&kinds()->pools);
}

/* Free memory from a pool: this process's own pool, or another process's. */
static CUresult
free_pooled(CUresult (*real)(CUdeviceptr, CUstream), CUdeviceptr dptr, CUstream stream)
{
    struct cgpu_holding opened;
    bool known = cgpu_pool_imports() && cgpu_share_leave(dptr, &opened);
    CUresult status = real(dptr, stream);
    if (known) {
        cgpu_share_left(&opened, status);
    }
    return status;
}

CUresult
cgpu_async_free(CUresult (*real)(CUdeviceptr, CUstream), CUdeviceptr dptr, CUstream stream)
{
    struct cgpu_holding holding;
    if (!cgpu_account_take(CGPU_KIND_LINEAR, dptr, &holding)) {
        return free_pooled(real, dptr, stream);
    }
    if (cgpu_small_bytes(&holding) != 0) {
        cgpu_small_leave(&holding);
    }
    CUresult status = real(dptr, stream);
    if (status != CUDA_SUCCESS) {
        if (cgpu_small_bytes(&holding) != 0) {
            cgpu_small_stay(&holding);
        }
        cgpu_account_restore(&holding);
        return status;
    }
    cgpu_account_end_export(&holding,
                            0); /* other processes that have opened it keep it from now on */
    if (stream == NULL) {
        stream = real == cgpu_real.cuMemFreeAsync_ptsz ? CU_STREAM_PER_THREAD_DEFAULT
                                                       : CU_STREAM_LEGACY_DEFAULT;
    }
    keep_until_synchronised(&holding, stream);
    return status;
}
