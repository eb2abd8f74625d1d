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

uint64_t
cgpu_copy_bytes_2d_v1(const struct cgpu_copy_2d_v1 *copy)
{
    uint64_t bytes = copy != NULL ? cgpu_transfer_product(copy->width, copy->height, 1) : 0;
    bool device = bytes >= CGPU_TRANSFER_LARGE && is_device(copy->from_type, copy->from_device) &&
                  is_device(copy->to_type, copy->to_device);

    return device ? bytes : 0;
}

/* The other descriptors differ in the width of their fields only. */
#define BYTES(what, depth)                                                                         \
    uint64_t cgpu_copy_bytes_##what(const struct cgpu_copy_##what *copy)                           \
    {                                                                                              \
        uint64_t bytes =                                                                           \
            copy != NULL ? cgpu_transfer_product(copy->width, copy->height, depth) : 0;            \
        bool device = bytes >= CGPU_TRANSFER_LARGE &&                                              \
                      is_device(copy->from.type, copy->from.device) &&                             \
                      is_device(copy->to.type, copy->to.device);                                   \
        return device ? bytes : 0;                                                                 \
    }

BYTES(2d, 1)
BYTES(3d_v1, copy->depth)
BYTES(3d, copy->depth)
