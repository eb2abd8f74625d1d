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

uint64_t
cgpu_copy_bytes_all(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *bytes,
                    size_t count)
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
    return cgpu_transfer_product(copy->width, copy->height, copy->depth);
}

static bool
is_device(const struct cgpu_copy_operand *operand)
{
    return operand->type == CU_OPERAND_ARRAY ||
           (operand->type == CU_OPERAND_POINTER && cgpu_transfer_is_device(operand->side.address));
}

uint64_t
cgpu_copy_bytes_of(const struct cgpu_copy_operation *copies, size_t count)
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

/* Of any size: how long it takes does not show in the bytes that come out. */
uint64_t
cgpu_decompressed_bytes(const struct cgpu_decompression *list, size_t count)
{
    uint64_t bytes = CGPU_TRANSFER_LARGE;

    for (size_t i = 0; list != NULL && i < count; i++) {
        bytes = sum(bytes, list[i].bytes);
    }
    return bytes;
}
