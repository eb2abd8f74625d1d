/*
 * Copies and fills inside the GPU's memory, which take its time like kernels: large ones pass the
 * gate. What moves between host and device is bounded by the bus and is let through.
 */
#ifndef CGPU_CUDA_TRANSFER_H
#define CGPU_CUDA_TRANSFER_H

#include <stdbool.h>
#include <stdint.h>

#include "compute/launch.h"
#include "entry/driver.h"

/* Below this it is over in some microseconds, and the way through the gate costs as much. */
#define CGPU_TRANSFER_LARGE UINT64_C(0x100000)

enum cgpu_transfer { CGPU_TRANSFER_FILL, CGPU_TRANSFER_COPY, CGPU_TRANSFER_DECOMPRESS };

/* begin of launch.h for BYTES in the GPU's memory; only for large ones. */
CUresult cgpu_transfer_begin(enum cgpu_transfer kind, uint64_t bytes, CUstream stream,
                             bool per_thread);

/* Is ADDRESS in a GPU's memory? The driver is asked; a pointer that it does not know is the host's.
 */
bool cgpu_transfer_is_device(CUdeviceptr address);

static inline uint64_t
cgpu_transfer_product(uint64_t a, uint64_t b)
{
    uint64_t product;

    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

/* The status of CALL, which moves BYTES in the GPU's memory; 0: none of it. */
#define THROUGH_GATE(kind, bytes, stream, per_thread, call)                                        \
    __extension__({                                                                                \
        uint64_t bytes_ = (bytes);                                                                 \
        bool large_ = bytes_ >= CGPU_TRANSFER_LARGE;                                               \
        CUresult status_ =                                                                         \
            large_ ? cgpu_transfer_begin(kind, bytes_, stream, per_thread) : CUDA_SUCCESS;         \
        if (status_ == CUDA_SUCCESS) {                                                             \
            status_ = (call);                                                                      \
            if (large_) {                                                                          \
                cgpu_launch_end();                                                                 \
            }                                                                                      \
        }                                                                                          \
        status_;                                                                                   \
    })

#endif
