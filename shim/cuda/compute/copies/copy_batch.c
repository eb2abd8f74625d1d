/*
 * Many copies in one call, and decompression: see transfer.h.
 *
 * A batch may have thousands of small copies. Where the memory is, is asked for those alone that
 * make out a good part of it.
 */
#include "compute/copies/transfer.h"
#include "entry/shim.h"

enum { PART = 256 };

static uint64_t
sum(uint64_t a, uint64_t b)
{
    return a + b < a ? UINT64_MAX : a + b;
}

static uint64_t
device_bytes(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *bytes, size_t count)
{
    uint64_t all = 0;
    uint64_t device = 0;

    if (to == NULL || from == NULL || bytes == NULL) {
        return 0;
    }
    for (size_t i = 0; i < count; i++) {
        all = sum(all, bytes[i]);
    }
    for (size_t i = 0; all >= CGPU_TRANSFER_LARGE && i < count; i++) {
        if (bytes[i] >= all / PART && cgpu_transfer_is_device(to[i]) &&
            cgpu_transfer_is_device(from[i])) {
            device = sum(device, bytes[i]);
        }
    }
    return device;
}

static uint64_t
volume(const struct cgpu_copy_operation *copy)
{
    return cgpu_transfer_product(cgpu_transfer_product(copy->width, copy->height), copy->depth);
}

static bool
is_device(const struct cgpu_copy_operand *operand)
{
    return operand->type == CU_OPERAND_ARRAY ||
           (operand->type == CU_OPERAND_POINTER && cgpu_transfer_is_device(operand->side.address));
}

static uint64_t
device_volume(const struct cgpu_copy_operation *copies, size_t count)
{
    uint64_t all = 0;
    uint64_t device = 0;

    for (size_t i = 0; copies != NULL && i < count; i++) {
        all = sum(all, volume(&copies[i]));
    }
    for (size_t i = 0; all >= CGPU_TRANSFER_LARGE && i < count; i++) {
        if (volume(&copies[i]) >= all / PART && is_device(&copies[i].to) &&
            is_device(&copies[i].from)) {
            device = sum(device, volume(&copies[i]));
        }
    }
    return device;
}

CUresult
cgpu_copy_batch_v1(CUresult (*real)(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, void *,
                                    size_t *, size_t, size_t *, CUstream),
                   CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
                   void *attributes, size_t *firsts, size_t kinds, size_t *failed, CUstream stream)
{
    return THROUGH_GATE(CGPU_TRANSFER_COPY, device_bytes(to, from, bytes, count), stream,
                        real == cgpu_real.cuMemcpyBatchAsync_ptsz,
                        real(to, from, bytes, count, attributes, firsts, kinds, failed, stream));
}

CUresult
cgpu_copy_batch(CUresult (*real)(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, void *, size_t *,
                                 size_t, CUstream),
                CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, void *attributes,
                size_t *firsts, size_t kinds, CUstream stream)
{
    return THROUGH_GATE(CGPU_TRANSFER_COPY, device_bytes(to, from, bytes, count), stream,
                        real == cgpu_real.cuMemcpyBatchAsync_v2_ptsz,
                        real(to, from, bytes, count, attributes, firsts, kinds, stream));
}

CUresult
cgpu_copy_batch_3d_v1(CUresult (*real)(size_t, struct cgpu_copy_operation *, size_t *,
                                       unsigned long long, CUstream),
                      size_t count, struct cgpu_copy_operation *copies, size_t *failed,
                      unsigned long long flags, CUstream stream)
{
    return THROUGH_GATE(CGPU_TRANSFER_COPY, device_volume(copies, count), stream,
                        real == cgpu_real.cuMemcpy3DBatchAsync_ptsz,
                        real(count, copies, failed, flags, stream));
}

CUresult
cgpu_copy_batch_3d(CUresult (*real)(size_t, struct cgpu_copy_operation *, unsigned long long,
                                    CUstream),
                   size_t count, struct cgpu_copy_operation *copies, unsigned long long flags,
                   CUstream stream)
{
    return THROUGH_GATE(CGPU_TRANSFER_COPY, device_volume(copies, count), stream,
                        real == cgpu_real.cuMemcpy3DBatchAsync_v2_ptsz,
                        real(count, copies, flags, stream));
}

CUresult
cgpu_copy_3d_with_attributes(CUresult (*real)(struct cgpu_copy_operation *, unsigned long long,
                                              CUstream),
                             struct cgpu_copy_operation *copy, unsigned long long flags,
                             CUstream stream)
{
    return THROUGH_GATE(CGPU_TRANSFER_COPY, device_volume(copy, 1), stream,
                        real == cgpu_real.cuMemcpy3DWithAttributesAsync_ptsz,
                        real(copy, flags, stream));
}

/* Of any size: how long it takes does not show in the bytes that come out. */
CUresult
cgpu_decompress(CUresult (*real)(struct cgpu_decompression *, size_t, unsigned int, size_t *,
                                 CUstream),
                struct cgpu_decompression *list, size_t count, unsigned int flags, size_t *failed,
                CUstream stream)
{
    uint64_t bytes = CGPU_TRANSFER_LARGE;

    for (size_t i = 0; list != NULL && i < count; i++) {
        bytes = sum(bytes, list[i].bytes);
    }
    return THROUGH_GATE(CGPU_TRANSFER_DECOMPRESS, bytes, stream,
                        real == cgpu_real.cuMemBatchDecompressAsync_ptsz,
                        real(list, count, flags, failed, stream));
}
