/* Fills of the GPU's memory: see transfer.h. */
#include "compute/copies/transfer.h"
#include "entry/shim.h"

static uint64_t
area(size_t width, size_t height, size_t element)
{
    return cgpu_transfer_product(cgpu_transfer_product(width, height), element);
}

#define FILL(bits, type)                                                                           \
    CUresult cgpu_fill_##bits##_v1(CUresult (*real)(CUdeviceptr_v1, type, unsigned int),           \
                                   CUdeviceptr_v1 to, type value, unsigned int count)              \
    {                                                                                              \
        return THROUGH_GATE(CGPU_TRANSFER_FILL, area(count, 1, sizeof(type)), NULL, false,         \
                            real(to, value, count));                                               \
    }                                                                                              \
    CUresult cgpu_fill_##bits(CUresult (*real)(CUdeviceptr, type, size_t), CUdeviceptr to,         \
                              type value, size_t count)                                            \
    {                                                                                              \
        return THROUGH_GATE(CGPU_TRANSFER_FILL, area(count, 1, sizeof(type)), NULL,                \
                            real == cgpu_real.cuMemsetD##bits##_v2_ptds, real(to, value, count));  \
    }                                                                                              \
    CUresult cgpu_fill_##bits##_async(CUresult (*real)(CUdeviceptr, type, size_t, CUstream),       \
                                      CUdeviceptr to, type value, size_t count, CUstream stream)   \
    {                                                                                              \
        return THROUGH_GATE(CGPU_TRANSFER_FILL, area(count, 1, sizeof(type)), stream,              \
                            real == cgpu_real.cuMemsetD##bits##Async_ptsz,                         \
                            real(to, value, count, stream));                                       \
    }                                                                                              \
    CUresult cgpu_fill_2d_##bits##_v1(                                                             \
        CUresult (*real)(CUdeviceptr_v1, unsigned int, type, unsigned int, unsigned int),          \
        CUdeviceptr_v1 to, unsigned int pitch, type value, unsigned int width,                     \
        unsigned int height)                                                                       \
    {                                                                                              \
        return THROUGH_GATE(CGPU_TRANSFER_FILL, area(width, height, sizeof(type)), NULL, false,    \
                            real(to, pitch, value, width, height));                                \
    }                                                                                              \
    CUresult cgpu_fill_2d_##bits(CUresult (*real)(CUdeviceptr, size_t, type, size_t, size_t),      \
                                 CUdeviceptr to, size_t pitch, type value, size_t width,           \
                                 size_t height)                                                    \
    {                                                                                              \
        return THROUGH_GATE(CGPU_TRANSFER_FILL, area(width, height, sizeof(type)), NULL,           \
                            real == cgpu_real.cuMemsetD2D##bits##_v2_ptds,                         \
                            real(to, pitch, value, width, height));                                \
    }                                                                                              \
    CUresult cgpu_fill_2d_##bits##_async(                                                          \
        CUresult (*real)(CUdeviceptr, size_t, type, size_t, size_t, CUstream), CUdeviceptr to,     \
        size_t pitch, type value, size_t width, size_t height, CUstream stream)                    \
    {                                                                                              \
        return THROUGH_GATE(CGPU_TRANSFER_FILL, area(width, height, sizeof(type)), stream,         \
                            real == cgpu_real.cuMemsetD2D##bits##Async_ptsz,                       \
                            real(to, pitch, value, width, height, stream));                        \
    }

FILL(8, unsigned char)
FILL(16, unsigned short)
FILL(32, unsigned int)
