/*
 * Plain copies inside the GPU's memory, or between GPUs: see transfer.h.
 *
 * An entry point whose name says "D" or "A" on both sides is taken at its word; only for those that
 * take any address the driver is asked where the memory is, and only for large ones.
 */
#include "compute/copies/transfer.h"
#include "entry/shim.h"

static uint64_t
device_bytes(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    bool device = bytes >= CGPU_TRANSFER_LARGE && cgpu_transfer_is_device(to) &&
                  cgpu_transfer_is_device(from);

    return device ? bytes : 0;
}

CUresult
cgpu_copy_device_v1(CUresult (*real)(CUdeviceptr_v1, CUdeviceptr_v1, unsigned int),
                    CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes)
{
    return THROUGH_GATE(CGPU_TRANSFER_COPY, bytes, NULL, false, real(to, from, bytes));
}

CUresult
cgpu_copy_device(CUresult (*real)(CUdeviceptr, CUdeviceptr, size_t), CUdeviceptr to,
                 CUdeviceptr from, size_t bytes)
{
    return THROUGH_GATE(CGPU_TRANSFER_COPY, bytes, NULL, real == cgpu_real.cuMemcpyDtoD_v2_ptds,
                        real(to, from, bytes));
}

CUresult
cgpu_copy_device_async_v1(CUresult (*real)(CUdeviceptr_v1, CUdeviceptr_v1, unsigned int, CUstream),
                          CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes,
                          CUstream stream)
{
    return THROUGH_GATE(CGPU_TRANSFER_COPY, bytes, stream, false, real(to, from, bytes, stream));
}

CUresult
cgpu_copy_device_async(CUresult (*real)(CUdeviceptr, CUdeviceptr, size_t, CUstream), CUdeviceptr to,
                       CUdeviceptr from, size_t bytes, CUstream stream)
{
    return THROUGH_GATE(CGPU_TRANSFER_COPY, bytes, stream,
                        real == cgpu_real.cuMemcpyDtoDAsync_v2_ptsz, real(to, from, bytes, stream));
}

CUresult
cgpu_copy_any(CUresult (*real)(CUdeviceptr, CUdeviceptr, size_t), CUdeviceptr to, CUdeviceptr from,
              size_t bytes)
{
    return THROUGH_GATE(CGPU_TRANSFER_COPY, device_bytes(to, from, bytes), NULL,
                        real == cgpu_real.cuMemcpy_ptds, real(to, from, bytes));
}

CUresult
cgpu_copy_any_async(CUresult (*real)(CUdeviceptr, CUdeviceptr, size_t, CUstream), CUdeviceptr to,
                    CUdeviceptr from, size_t bytes, CUstream stream)
{
    return THROUGH_GATE(CGPU_TRANSFER_COPY, device_bytes(to, from, bytes), stream,
                        real == cgpu_real.cuMemcpyAsync_ptsz, real(to, from, bytes, stream));
}

CUresult
cgpu_copy_with_attributes(CUresult (*real)(CUdeviceptr, CUdeviceptr, size_t, void *, CUstream),
                          CUdeviceptr to, CUdeviceptr from, size_t bytes, void *attributes,
                          CUstream stream)
{
    return THROUGH_GATE(CGPU_TRANSFER_COPY, device_bytes(to, from, bytes), stream,
                        real == cgpu_real.cuMemcpyWithAttributesAsync_ptsz,
                        real(to, from, bytes, attributes, stream));
}

CUresult
cgpu_copy_peer(CUresult (*real)(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t),
               CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
               size_t bytes)
{
    return THROUGH_GATE(CGPU_TRANSFER_COPY, bytes, NULL, real == cgpu_real.cuMemcpyPeer_ptds,
                        real(to, to_context, from, from_context, bytes));
}

CUresult
cgpu_copy_peer_async(CUresult (*real)(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t,
                                      CUstream),
                     CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                     size_t bytes, CUstream stream)
{
    return THROUGH_GATE(CGPU_TRANSFER_COPY, bytes, stream, real == cgpu_real.cuMemcpyPeerAsync_ptsz,
                        real(to, to_context, from, from_context, bytes, stream));
}

CUresult
cgpu_copy_array_to_array_v1(CUresult (*real)(CUarray, unsigned int, CUarray, unsigned int,
                                             unsigned int),
                            CUarray to, unsigned int at, CUarray from, unsigned int offset,
                            unsigned int bytes)
{
    return THROUGH_GATE(CGPU_TRANSFER_COPY, bytes, NULL, false, real(to, at, from, offset, bytes));
}

CUresult
cgpu_copy_array_to_array(CUresult (*real)(CUarray, size_t, CUarray, size_t, size_t), CUarray to,
                         size_t at, CUarray from, size_t offset, size_t bytes)
{
    return THROUGH_GATE(CGPU_TRANSFER_COPY, bytes, NULL, real == cgpu_real.cuMemcpyAtoA_v2_ptds,
                        real(to, at, from, offset, bytes));
}

CUresult
cgpu_copy_array_to_device_v1(CUresult (*real)(CUdeviceptr_v1, CUarray, unsigned int, unsigned int),
                             CUdeviceptr_v1 to, CUarray from, unsigned int offset,
                             unsigned int bytes)
{
    return THROUGH_GATE(CGPU_TRANSFER_COPY, bytes, NULL, false, real(to, from, offset, bytes));
}

CUresult
cgpu_copy_array_to_device(CUresult (*real)(CUdeviceptr, CUarray, size_t, size_t), CUdeviceptr to,
                          CUarray from, size_t offset, size_t bytes)
{
    return THROUGH_GATE(CGPU_TRANSFER_COPY, bytes, NULL, real == cgpu_real.cuMemcpyAtoD_v2_ptds,
                        real(to, from, offset, bytes));
}

CUresult
cgpu_copy_device_to_array_v1(CUresult (*real)(CUarray, unsigned int, CUdeviceptr_v1, unsigned int),
                             CUarray to, unsigned int at, CUdeviceptr_v1 from, unsigned int bytes)
{
    return THROUGH_GATE(CGPU_TRANSFER_COPY, bytes, NULL, false, real(to, at, from, bytes));
}

CUresult
cgpu_copy_device_to_array(CUresult (*real)(CUarray, size_t, CUdeviceptr, size_t), CUarray to,
                          size_t at, CUdeviceptr from, size_t bytes)
{
    return THROUGH_GATE(CGPU_TRANSFER_COPY, bytes, NULL, real == cgpu_real.cuMemcpyDtoA_v2_ptds,
                        real(to, at, from, bytes));
}
