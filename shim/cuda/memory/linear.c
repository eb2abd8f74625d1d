/*
 * Linear and pitched memory. A request of more than 1 MiB is charged whole blocks of 2 MiB. Smaller
 * ones are charged the blocks that they share (small.c).
 *
 * Assumed of drivers: a larger allocation begins at a block boundary, and has its blocks to itself.
 * It is charged the blocks that its addresses touch, wherever it begins.
 *
 * The v1 entry points have 32-bit pointers and sizes, but take the same memory. One version can
 * free what the other allocated, so the key is the address.
 */
#include "entry/shim.h"
#include "memory/account.h"
#include "memory/charge.h"
#include "memory/pending.h"
#include "memory/pools/pool.h"
#include "memory/small.h"
#include "memory/target.h"

enum { PITCH = 512 /* what drivers make rows a multiple of */ };

/* One driver call that allocates. */
struct allocation {
    struct cgpu_pending pending;
    struct cgpu_small small;
    bool is_small;
};

static CUresult
begin(struct allocation *made, uint64_t bytes, bool low)
{
    struct cgpu_target *target = &made->pending.target;
    made->pending.charged = 0;
    CUresult status = cgpu_target_current(target);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    made->is_small = bytes != 0 && bytes <= CGPU_BLOCK_SMALL && target->gpu >= 0;
    return made->is_small ? cgpu_small_begin(&made->small, target, bytes, low)
                          : cgpu_charge_for(target->gpu, cgpu_account_whole(target->gpu, bytes),
                                            bytes, &made->pending.charged);
}

static CUresult
fail(struct allocation *made, CUresult status)
{
    if (made->is_small) {
        cgpu_small_cancel(&made->small);
    } else {
        cgpu_pending_cancel(&made->pending);
    }
    return status;
}

/*
 * Change the charge to what the allocation really takes: the driver chooses its pitch and address.
 */
static CUresult
fit(struct cgpu_pending *pending, CUdeviceptr address, uint64_t bytes)
{
    uint64_t within = address % CGPU_BLOCK_BYTES;
    if (__builtin_add_overflow(bytes, within, &bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return cgpu_pending_resize(pending, bytes);
}

static CUresult
keep_large(struct allocation *made, CUdeviceptr address, uint64_t bytes)
{
    CUresult status = fit(&made->pending, address, bytes);
    if (status == CUDA_SUCCESS) {
        status = cgpu_pending_commit(&made->pending, CGPU_KIND_LINEAR, address, 0);
        if (status == CUDA_SUCCESS) {
            return status;
        }
    } else {
        cgpu_pending_cancel(&made->pending);
    }
    cgpu_real.cuMemFree_v2(address);
    return status;
}

/*
 * Keep a small allocation. It is recorded first: if its address belonged to memory that was freed
 * unseen, that memory is then removed from its block.
 */
static CUresult
keep_small(struct allocation *made, CUdeviceptr address, uint64_t bytes)
{
    struct cgpu_holding held;
    CUresult status = cgpu_pending_commit(&made->pending, CGPU_KIND_LINEAR, address, bytes);
    if (status != CUDA_SUCCESS) {
        cgpu_real.cuMemFree_v2(address);
        return fail(made, status);
    }
    status = cgpu_small_keep(&made->small, address, bytes);
    if (status != CUDA_SUCCESS) {
        cgpu_account_take(CGPU_KIND_LINEAR, address, &held);
    }
    return status;
}

/* Keep the allocation, or cancel it. STATUS is the driver's answer; it put BYTES at ADDRESS. */
static CUresult
finish(struct allocation *made, CUresult status, CUdeviceptr address, uint64_t bytes)
{
    if (status != CUDA_SUCCESS) {
        return fail(made, status);
    }
    if (made->is_small && bytes <= CGPU_BLOCK_SMALL) {
        return keep_small(made, address, bytes);
    }
    if (made->is_small) { /* its pitch is larger than expected */
        (void)fail(made, status);
    }
    return keep_large(made, address, bytes);
}

/* Allocate. A call without DPTR goes to the driver, which refuses it. */
CUresult
cgpu_linear_alloc(CUresult (*real)(CUdeviceptr *, size_t), CUdeviceptr *dptr, size_t size)
{
    struct allocation made;
    if (dptr == NULL) {
        return real(NULL, size);
    }
    CUresult status = begin(&made, size, false);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    status = real(dptr, size);
    return finish(&made, status, status == CUDA_SUCCESS ? *dptr : 0, size);
}

CUresult
cgpu_linear_alloc_v1(CUresult (*real)(CUdeviceptr_v1 *, unsigned int), CUdeviceptr_v1 *dptr,
                     unsigned int size)
{
    struct allocation made;
    if (dptr == NULL) {
        return real(NULL, size);
    }
    CUresult status = begin(&made, size, true);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    status = real(dptr, size);
    return finish(&made, status, status == CUDA_SUCCESS ? *dptr : 0, size);
}

/* Bytes of WIDTH x HEIGHT. If that overflows, more than any cap. */
static uint64_t
area(uint64_t width, uint64_t height)
{
    uint64_t bytes;
    return __builtin_mul_overflow(width, height, &bytes) ? UINT64_MAX : bytes;
}

static uint64_t
pitched(uint64_t width, uint64_t height)
{
    uint64_t rest = width % PITCH;
    return area(rest == 0 || width > UINT64_MAX - PITCH ? width : width + PITCH - rest, height);
}

/*
 * Allocate with a pitch. If the program left out an output, the driver is called without an
 * address, so that it cannot allocate.
 */
CUresult
cgpu_linear_alloc_pitch(CUresult (*real)(CUdeviceptr *, size_t *, size_t, size_t, unsigned int),
                        CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height,
                        unsigned int element)
{
    struct allocation made;
    if (dptr == NULL || pitch == NULL) {
        return real(NULL, pitch, width, height, element);
    }
    CUresult status = begin(&made, pitched(width, height), false);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    status = real(dptr, pitch, width, height, element);
    return status != CUDA_SUCCESS ? fail(&made, status)
                                  : finish(&made, status, *dptr, area(*pitch, height));
}

CUresult
cgpu_linear_alloc_pitch_v1(CUresult (*real)(CUdeviceptr_v1 *, unsigned int *, unsigned int,
                                            unsigned int, unsigned int),
                           CUdeviceptr_v1 *dptr, unsigned int *pitch, unsigned int width,
                           unsigned int height, unsigned int element)
{
    struct allocation made;
    if (dptr == NULL || pitch == NULL) {
        return real(NULL, pitch, width, height, element);
    }
    CUresult status = begin(&made, pitched(width, height), true);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    status = real(dptr, pitch, width, height, element);
    return status != CUDA_SUCCESS ? fail(&made, status)
                                  : finish(&made, status, *dptr, area(*pitch, height));
}

/* Take the holding of memory that is about to be freed. NULL: it has no holding. */
static struct cgpu_holding *
leave(CUdeviceptr address, struct cgpu_holding *holding)
{
    if (!cgpu_account_take(CGPU_KIND_LINEAR, address, holding)) {
        return NULL;
    }
    if (cgpu_small_bytes(holding) != 0) {
        cgpu_small_leave(holding);
    }
    return holding;
}

/*
 * End a free. Processes that have opened the memory are charged first, so that somebody pays at
 * every moment.
 */
static CUresult
end_free(const struct cgpu_holding *holding, CUresult status)
{
    (void)cgpu_account_end_free(holding, status);
    if (holding != NULL && cgpu_small_bytes(holding) != 0 && status == CUDA_SUCCESS) {
        cgpu_small_gone(holding);
    } else if (holding != NULL && cgpu_small_bytes(holding) != 0) {
        cgpu_small_stay(holding);
    }
    return status;
}

/*
 * Free linear memory. If it is of another process's pool, give back what this process pays for it.
 */
CUresult
cgpu_linear_free(CUresult (*real)(CUdeviceptr), CUdeviceptr dptr)
{
    struct cgpu_holding holding;
    const struct cgpu_holding *held = leave(dptr, &holding);
    return held == NULL && cgpu_pool_imports() ? cgpu_share_close(real, dptr)
                                               : end_free(held, real(dptr));
}

CUresult
cgpu_linear_free_v1(CUresult (*real)(CUdeviceptr_v1), CUdeviceptr_v1 dptr)
{
    struct cgpu_holding holding;
    const struct cgpu_holding *held = leave(dptr, &holding);
    return end_free(held, real(dptr));
}
