/*
 * Copies and fills inside the GPU's memory, generated from transfers.def. They take GPU time like
 * kernels, so large ones pass the gate. Copies between host and device do not: the bus limits them.
 *
 * An entry point whose name has "D" or "A" on both sides moves memory of the GPU. If an entry point
 * takes any address, the driver is asked where large copies are. A batch may have thousands of
 * small copies: then the driver is asked only about those that make up a good part of the batch.
 */
#include "compute/launch.h"
#include "entry/copies.h"
#include "entry/shim.h"
#include "entry/thread.h"

/* A smaller transfer takes some microseconds, and the path through the gate costs as much. */
#define LARGE UINT64_C(0x100000)

/* Assumed until there is a measurement: 200 GB/s, the rate of the slowest data-centre GPUs. */
enum { BYTES_PER_NS = 200 };

enum { PART = 256 }; /* of a batch: the driver is not asked about smaller parts of it */

enum transfer { FILL, COPY, DECOMPRESS, TRANSFERS };

/*
 * Whether a side of TYPE is in a GPU's memory. If TYPE is newer than cgpu, the answer is yes. An
 * address that the driver does not know is the host's.
 */
static bool
is_device(int type, CUdeviceptr address)
{
    if (type != CU_MEMORY_UNIFIED) {
        return type != CU_MEMORY_HOST;
    }
    return cgpu_real.cuPointerGetAttribute(&type, CU_POINTER_MEMORY_TYPE, address) ==
               CUDA_SUCCESS &&
           type != CU_MEMORY_HOST;
}

/*
 * ---- how many bytes move in the GPU's memory, for transfers.def; 0: none, or few ----
 *
 * A copy whose bytes do not fit into 64 bits may pass the gate: the driver refuses it.
 */

static uint64_t
bytes_between(int to_type, CUdeviceptr to, int from_type, CUdeviceptr from, uint64_t bytes)
{
    return bytes >= LARGE && is_device(to_type, to) && is_device(from_type, from) ? bytes : 0;
}

static uint64_t
bytes_any(CUdeviceptr to, CUdeviceptr from, uint64_t bytes)
{
    return bytes_between(CU_MEMORY_UNIFIED, to, CU_MEMORY_UNIFIED, from, bytes);
}

#define SHAPED(what, depth, to_type, to, from_type, from)                                          \
    static uint64_t bytes_##what(const struct cgpu_copy_##what *copy)                              \
    {                                                                                              \
        return copy == NULL ? 0                                                                    \
                            : bytes_between(copy->to_type, copy->to, copy->from_type, copy->from,  \
                                            (uint64_t)copy->width * copy->height * (depth));       \
    }

SHAPED(2d_v1, 1, to_type, to_device, from_type, from_device)
SHAPED(2d, 1, to.type, to.device, from.type, from.device)
SHAPED(3d_v1, copy->depth, to.type, to.device, from.type, from.device)
SHAPED(3d, copy->depth, to.type, to.device, from.type, from.device)

static bool
is_device_operand(const struct cgpu_copy_operand *operand)
{
    return operand->type != CU_OPERAND_POINTER ||
           is_device(CU_MEMORY_UNIFIED, operand->side.address);
}

/* COUNT copies of PART bytes each, if GIVEN is not NULL. Those INSIDE a GPU's memory count. */
#define BATCH(what, parameters, given, part, inside)                                               \
    static uint64_t bytes_##what parameters                                                        \
    {                                                                                              \
        uint64_t all = 0, device = 0;                                                              \
        for (size_t i = 0; (given) && i < count; i++) {                                            \
            all += (part);                                                                         \
        }                                                                                          \
        for (size_t i = 0; all >= LARGE && i < count; i++) {                                       \
            device += (part) >= all / PART && (inside) ? (part) : 0;                               \
        }                                                                                          \
        return device;                                                                             \
    }

BATCH(all, (const CUdeviceptr *to, const CUdeviceptr *from, const size_t *bytes, size_t count),
      to != NULL && from != NULL && bytes != NULL, bytes[i],
      is_device(CU_MEMORY_UNIFIED, to[i]) && is_device(CU_MEMORY_UNIFIED, from[i]))
BATCH(of, (const struct cgpu_copy_operation *copies, size_t count), copies != NULL,
      (copies[i].width * copies[i].height * copies[i].depth),
      is_device_operand(&copies[i].to) && is_device_operand(&copies[i].from))

/* A decompression counts as large at any size: its output does not show how long it takes. */
static uint64_t
bytes_decompressed(const struct cgpu_decompression *list, size_t count)
{
    uint64_t bytes = LARGE;
    for (size_t i = 0; list != NULL && i < count; i++) {
        bytes += list[i].bytes;
    }
    return bytes;
}

/* ---- the entry points ---- */

/* Begin a transfer. For the estimates, sizes up to twice as large are one size. */
static CUresult
begin_transfer(enum transfer kind, uint64_t bytes, CUstream stream, bool per_thread)
{
    static const char kinds[TRANSFERS];
    uint64_t units = UINT64_C(1) << (63 - __builtin_clzll(bytes));
    return cgpu_launch_begin(stream, per_thread, cgpu_pace_key(&kinds[kind], units),
                             bytes / BYTES_PER_NS, NULL);
}

#define TRANSFER(name, kind, bytes, stream, per_thread, parameters, arguments)                     \
    CGPU_GUARDED(name, parameters, arguments, {                                                    \
        uint64_t moved = (bytes);                                                                  \
        bool large = moved >= LARGE;                                                               \
        status = large ? begin_transfer(kind, moved, stream, per_thread) : CUDA_SUCCESS;           \
        if (status == CUDA_SUCCESS) {                                                              \
            status = cgpu_real.name arguments;                                                     \
            if (large) {                                                                           \
                cgpu_launch_end();                                                                 \
            }                                                                                      \
        }                                                                                          \
    })
#include "entry/hooks.def"
