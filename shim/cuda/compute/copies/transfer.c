/* The entry points that copy or fill, generated from transfers.def: see transfer.h. */
#include "compute/copies/transfer.h"
#include "compute/launch.h"
#include "entry/shim.h"
#include "entry/thread.h"

/* As long as nothing has been measured: 200 GB/s, what the slowest of data-centre GPUs do. */
enum { BYTES_PER_NS = 200 };

enum transfer { FILL, COPY, DECOMPRESS, TRANSFERS };

bool
cgpu_transfer_is_device(CUdeviceptr address)
{
    unsigned int type = CU_MEMORY_HOST;

    return cgpu_real.cuPointerGetAttribute(&type, CU_POINTER_MEMORY_TYPE, address) ==
               CUDA_SUCCESS &&
           type != CU_MEMORY_HOST;
}

/* Where the driver has to be asked on which side the memory is. */
static uint64_t
bytes_between(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    bool device = bytes >= CGPU_TRANSFER_LARGE && cgpu_transfer_is_device(to) &&
                  cgpu_transfer_is_device(from);

    return device ? bytes : 0;
}

/* Sizes up to twice as large are one size to the estimates. */
static CUresult
begin(enum transfer kind, uint64_t bytes, CUstream stream, bool per_thread)
{
    static const char kinds[TRANSFERS];
    uint64_t units = UINT64_C(1) << (63 - __builtin_clzll(bytes));

    return cgpu_launch_begin(stream, per_thread, cgpu_pace_key(&kinds[kind], units),
                             bytes / BYTES_PER_NS, NULL);
}

#define TRANSFER(name, kind, bytes, stream, per_thread, parameters, arguments)                     \
    CUresult name parameters                                                                       \
    {                                                                                              \
        if (cgpu_thread.depth != 0) {                                                              \
            return cgpu_real.name arguments;                                                       \
        }                                                                                          \
        cgpu_thread.depth = 1;                                                                     \
        uint64_t moved = (bytes);                                                                  \
        bool large = moved >= CGPU_TRANSFER_LARGE;                                                 \
        CUresult status = large ? begin(kind, moved, stream, per_thread) : CUDA_SUCCESS;           \
        if (status == CUDA_SUCCESS) {                                                              \
            status = cgpu_real.name arguments;                                                     \
            if (large) {                                                                           \
                cgpu_launch_end();                                                                 \
            }                                                                                      \
        }                                                                                          \
        cgpu_thread.depth = 0;                                                                     \
        return status;                                                                             \
    }

#include "entry/transfers.def"
#undef TRANSFER
