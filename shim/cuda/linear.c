/*
 * Linear and pitched memory.
 *
 * The v1 entry points have 32-bit pointers and sizes but take the same memory, and what one version
 * allocates the other frees: the key is the address.
 */
#include "shim.h"

/* After a successful real call: keep the charge, or free what was just allocated. */
static CUresult
keep(struct cgpu_pending *pending, CUdeviceptr address)
{
    CUresult status = cgpu_charge_commit(pending, CGPU_KIND_LINEAR, address, 0);
    if (status != CUDA_SUCCESS) {
        cgpu_real.cuMemFree_v2(address);
    }
    return status;
}

CUresult
cgpu_linear_alloc(CUresult (*real)(CUdeviceptr *, size_t), CUdeviceptr *dptr, size_t size)
{
    struct cgpu_pending pending;
    CUresult status = cgpu_charge_begin_padded(&pending, size);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    status = real(dptr, size);
    if (status != CUDA_SUCCESS) {
        cgpu_charge_cancel(&pending);
        return status;
    }
    return keep(&pending, *dptr);
}

CUresult
cgpu_linear_alloc_v1(CUresult (*real)(CUdeviceptr_v1 *, unsigned int), CUdeviceptr_v1 *dptr,
                     unsigned int size)
{
    struct cgpu_pending pending;
    CUresult status = cgpu_charge_begin_padded(&pending, size);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    status = real(dptr, size);
    if (status != CUDA_SUCCESS) {
        cgpu_charge_cancel(&pending);
        return status;
    }
    return keep(&pending, *dptr);
}

/* The least that WIDTH x HEIGHT bytes take; if they overflow, more than any cap. */
static uint64_t
area(uint64_t width, uint64_t height)
{
    uint64_t bytes;
    return __builtin_mul_overflow(width, height, &bytes) ? UINT64_MAX : bytes;
}

/* The pitch is the driver's choice: charge the rest once it is known, or take the memory back. */
static CUresult
keep_pitched(struct cgpu_pending *pending, CUdeviceptr address, uint64_t pitch, uint64_t height)
{
    CUresult status = cgpu_charge_grow(pending, area(pitch, height));
    if (status != CUDA_SUCCESS) {
        cgpu_real.cuMemFree_v2(address);
        cgpu_charge_cancel(pending);
        return status;
    }
    return keep(pending, address);
}

CUresult
cgpu_linear_alloc_pitch(CUresult (*real)(CUdeviceptr *, size_t *, size_t, size_t, unsigned int),
                        CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height,
                        unsigned int element)
{
    struct cgpu_pending pending;
    CUresult status = cgpu_charge_begin_padded(&pending, area(width, height));
    if (status != CUDA_SUCCESS) {
        return status;
    }
    status = real(dptr, pitch, width, height, element);
    if (status != CUDA_SUCCESS) {
        cgpu_charge_cancel(&pending);
        return status;
    }
    return keep_pitched(&pending, *dptr, *pitch, height);
}

CUresult
cgpu_linear_alloc_pitch_v1(CUresult (*real)(CUdeviceptr_v1 *, unsigned int *, unsigned int,
                                            unsigned int, unsigned int),
                           CUdeviceptr_v1 *dptr, unsigned int *pitch, unsigned int width,
                           unsigned int height, unsigned int element)
{
    struct cgpu_pending pending;
    CUresult status = cgpu_charge_begin_padded(&pending, area(width, height));
    if (status != CUDA_SUCCESS) {
        return status;
    }
    status = real(dptr, pitch, width, height, element);
    if (status != CUDA_SUCCESS) {
        cgpu_charge_cancel(&pending);
        return status;
    }
    return keep_pitched(&pending, *dptr, *pitch, height);
}

CUresult
cgpu_linear_free(CUresult (*real)(CUdeviceptr), CUdeviceptr dptr)
{
    struct cgpu_holding holding;
    bool held = cgpu_charge_take(CGPU_KIND_LINEAR, dptr, &holding);
    return cgpu_charge_settle(held ? &holding : NULL, real(dptr));
}

CUresult
cgpu_linear_free_v1(CUresult (*real)(CUdeviceptr_v1), CUdeviceptr_v1 dptr)
{
    struct cgpu_holding holding;
    bool held = cgpu_charge_take(CGPU_KIND_LINEAR, dptr, &holding);
    return cgpu_charge_settle(held ? &holding : NULL, real(dptr));
}
