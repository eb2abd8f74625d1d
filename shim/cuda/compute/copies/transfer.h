/*
 * Copies and fills inside the GPU's memory, which take its time like kernels: large ones pass the
 * gate. What moves between host and device is bounded by the bus and is let through.
 *
 * An entry point whose name says "D" or "A" on both sides is taken at its word; only for those that
 * take any address the driver is asked where the memory is, and only for large ones.
 */
#ifndef CGPU_CUDA_TRANSFER_H
#define CGPU_CUDA_TRANSFER_H

#include <stdbool.h>
#include <stdint.h>

#include "entry/copies.h"
#include "entry/driver.h"

/* Below this it is over in some microseconds, and the way through the gate costs as much. */
#define CGPU_TRANSFER_LARGE UINT64_C(0x100000)

/* Is ADDRESS in a GPU's memory? The driver is asked; a pointer that it does not know is the host's.
 */
bool cgpu_transfer_is_device(CUdeviceptr address);

/* The product; UINT64_MAX where it does not fit. */
static inline uint64_t
cgpu_transfer_product(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t product;

    return __builtin_mul_overflow(a, b, &product) || __builtin_mul_overflow(product, c, &product)
               ? UINT64_MAX
               : product;
}

/* How many bytes a copy moves in the GPU's memory, for transfers.def; 0: none, or few. */
uint64_t cgpu_copy_bytes_2d_v1(const struct cgpu_copy_2d_v1 *copy);
uint64_t cgpu_copy_bytes_2d(const struct cgpu_copy_2d *copy);
uint64_t cgpu_copy_bytes_3d_v1(const struct cgpu_copy_3d_v1 *copy);
uint64_t cgpu_copy_bytes_3d(const struct cgpu_copy_3d *copy);
uint64_t cgpu_copy_bytes_all(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *bytes,
                             size_t count);
uint64_t cgpu_copy_bytes_of(const struct cgpu_copy_operation *copies, size_t count);
uint64_t cgpu_decompressed_bytes(const struct cgpu_decompression *list, size_t count);

#endif
