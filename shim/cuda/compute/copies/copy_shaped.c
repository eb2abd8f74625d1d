/* Copies in two and three dimensions, whose descriptors say where either side is: transfer.h. */
#include "compute/copies/transfer.h"
#include "entry/shim.h"

/* Of a side of TYPE (CUmemorytype); the address counts where the driver has to be asked. */
static bool
is_device(int type, CUdeviceptr address)
{
    if (type == CU_MEMORY_UNIFIED) {
        return cgpu_transfer_is_device(address);
    }
    return type == CU_MEMORY_DEVICE || type == CU_MEMORY_ARRAY;
}

static uint64_t
volume(size_t width, size_t height, size_t depth)
{
    return cgpu_transfer_product(cgpu_transfer_product(width, height), depth);
}

static uint64_t
bytes_2d_v1(const struct cgpu_copy_2d_v1 *copy)
{
    uint64_t bytes = copy != NULL ? volume(copy->width, copy->height, 1) : 0;
    bool device = bytes >= CGPU_TRANSFER_LARGE && is_device(copy->from_type, copy->from_device) &&
                  is_device(copy->to_type, copy->to_device);

    return device ? bytes : 0;
}

/* The other descriptors differ in the width of their fields only. */
#define DEVICE_BYTES(copy, depth)                                                                  \
    __extension__({                                                                                \
        uint64_t volume_ = (copy) != NULL ? volume((copy)->width, (copy)->height, depth) : 0;      \
        volume_ >= CGPU_TRANSFER_LARGE &&is_device((copy)->from.type, (copy)->from.device) &&      \
                is_device((copy)->to.type, (copy)->to.device)                                      \
            ? volume_                                                                              \
            : 0;                                                                                   \
    })

CUresult
cgpu_copy_2d_v1(CUresult (*real)(const struct cgpu_copy_2d_v1 *),
                const struct cgpu_copy_2d_v1 *copy)
{
    return THROUGH_GATE(CGPU_TRANSFER_COPY, bytes_2d_v1(copy), NULL, false, real(copy));
}

CUresult
cgpu_copy_2d(CUresult (*real)(const struct cgpu_copy_2d *), const struct cgpu_copy_2d *copy)
{
    return THROUGH_GATE(CGPU_TRANSFER_COPY, DEVICE_BYTES(copy, 1), NULL,
                        real == cgpu_real.cuMemcpy2D_v2_ptds ||
                            real == cgpu_real.cuMemcpy2DUnaligned_v2_ptds,
                        real(copy));
}

CUresult
cgpu_copy_2d_async_v1(CUresult (*real)(const struct cgpu_copy_2d_v1 *, CUstream),
                      const struct cgpu_copy_2d_v1 *copy, CUstream stream)
{
    return THROUGH_GATE(CGPU_TRANSFER_COPY, bytes_2d_v1(copy), stream, false, real(copy, stream));
}

CUresult
cgpu_copy_2d_async(CUresult (*real)(const struct cgpu_copy_2d *, CUstream),
                   const struct cgpu_copy_2d *copy, CUstream stream)
{
    return THROUGH_GATE(CGPU_TRANSFER_COPY, DEVICE_BYTES(copy, 1), stream,
                        real == cgpu_real.cuMemcpy2DAsync_v2_ptsz, real(copy, stream));
}

CUresult
cgpu_copy_3d_v1(CUresult (*real)(const struct cgpu_copy_3d_v1 *),
                const struct cgpu_copy_3d_v1 *copy)
{
    return THROUGH_GATE(CGPU_TRANSFER_COPY, DEVICE_BYTES(copy, copy->depth), NULL, false,
                        real(copy));
}

CUresult
cgpu_copy_3d(CUresult (*real)(const struct cgpu_copy_3d *), const struct cgpu_copy_3d *copy)
{
    return THROUGH_GATE(
        CGPU_TRANSFER_COPY, DEVICE_BYTES(copy, copy->depth), NULL,
        real == cgpu_real.cuMemcpy3D_v2_ptds || real == cgpu_real.cuMemcpy3DPeer_ptds, real(copy));
}

CUresult
cgpu_copy_3d_async_v1(CUresult (*real)(const struct cgpu_copy_3d_v1 *, CUstream),
                      const struct cgpu_copy_3d_v1 *copy, CUstream stream)
{
    return THROUGH_GATE(CGPU_TRANSFER_COPY, DEVICE_BYTES(copy, copy->depth), stream, false,
                        real(copy, stream));
}

CUresult
cgpu_copy_3d_async(CUresult (*real)(const struct cgpu_copy_3d *, CUstream),
                   const struct cgpu_copy_3d *copy, CUstream stream)
{
    return THROUGH_GATE(CGPU_TRANSFER_COPY, DEVICE_BYTES(copy, copy->depth), stream,
                        real == cgpu_real.cuMemcpy3DAsync_v2_ptsz ||
                            real == cgpu_real.cuMemcpy3DPeerAsync_ptsz,
                        real(copy, stream));
}
