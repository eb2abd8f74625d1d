/* What large copies and fills have in common: see transfer.h. */
#include "compute/copies/transfer.h"

#include "entry/shim.h"

/* As long as nothing has been measured: 200 GB/s, what the slowest of data-centre GPUs do. */
enum { BYTES_PER_NS = 200 };

CUresult
cgpu_transfer_begin(enum cgpu_transfer kind, uint64_t bytes, CUstream stream, bool per_thread)
{
    static const char kinds[3];
    /* sizes up to twice as large are one size to the estimates */
    uint64_t units = UINT64_C(1) << (63 - __builtin_clzll(bytes));

    return cgpu_launch_begin(stream, per_thread, cgpu_pace_key(&kinds[kind], units),
                             bytes / BYTES_PER_NS);
}

bool
cgpu_transfer_is_device(CUdeviceptr address)
{
    unsigned int type = CU_MEMORY_HOST;

    return cgpu_real.cuPointerGetAttribute(&type, CU_POINTER_MEMORY_TYPE, address) ==
               CUDA_SUCCESS &&
           type != CU_MEMORY_HOST;
}
