/*
 * Arrays and mipmapped arrays, charged by their real size.
 *
 * The driver chooses the layout of an array. To learn its size, a second array with deferred
 * mapping is made, which has the same layout but no memory. For drivers that cannot do that, an
 * upper estimate is charged. Sparse and deferred arrays take nothing; memory that is mapped into
 * them later was charged when it was created.
 */
#include "entry/shim.h"
#include "memory/account.h"
#include "memory/pending.h"
#include "memory/physical/physical.h"

enum { ROW_UNIT = 512, ROWS_UNIT = 16, LEVEL_UNIT = 64 << 10, CUBE_FACES = 6 };
enum { FIRST_PACKED = 0x91, LAST_PACKED = 0xcb, LARGEST_TEXEL = 16 };

/*
 * Bytes of one channel of a CUarray_format. Block-compressed and planar formats take at most four.
 * For a format newer than cgpu, this is the size of the largest texel.
 */
static uint64_t
channel_bytes(int format)
{
    switch (format) {
    case 0x01: /* 8-bit integers and their normalised forms */
    case 0x08:
        return 1;
    case 0x02: /* 16-bit integers and half floats */
    case 0x09:
    case 0x10:
        return 2;
    case 0x03: /* 32-bit integers and floats */
    case 0x0a:
    case 0x20:
        return 4;
    default:
        return format >= FIRST_PACKED && format <= LAST_PACKED ? 4 : LARGEST_TEXEL;
    }
}

static uint64_t
round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* Bytes of one mipmap level, or UINT64_MAX if that overflows. */
static uint64_t
level_bytes(const struct cgpu_array3d_descriptor *asked, unsigned int level)
{
    bool layered = (asked->flags & (CU_ARRAY3D_LAYERED | CU_ARRAY3D_CUBEMAP)) != 0;
    uint64_t width = asked->width >> level;
    uint64_t height = asked->height >> level;
    uint64_t depth = layered ? asked->depth : asked->depth >> level;
    uint64_t bytes;
    if (width > UINT32_MAX || height > UINT32_MAX || depth > UINT32_MAX || asked->channels > 4) {
        return UINT64_MAX; /* no GPU has such arrays: the driver refuses them, or the cap does */
    }
    uint64_t row = round_up(
        (width == 0 ? 1 : width) * channel_bytes(asked->format) * asked->channels, ROW_UNIT);
    uint64_t rows = asked->height == 0 ? 1 : round_up(height == 0 ? 1 : height, ROWS_UNIT);
    if (__builtin_mul_overflow(row, rows, &bytes) ||
        __builtin_mul_overflow(bytes, depth == 0 ? 1 : depth, &bytes) || bytes > UINT64_MAX / 64) {
        return UINT64_MAX;
    }
    return round_up(bytes, LEVEL_UNIT);
}

static uint64_t
estimate(const struct cgpu_array3d_descriptor *asked, unsigned int levels)
{
    uint64_t bytes = 0;
    for (unsigned int level = 0; level < levels && level < 32; level++) {
        if (__builtin_add_overflow(bytes, level_bytes(asked, level), &bytes)) {
            return UINT64_MAX;
        }
    }
    return bytes;
}

static bool
takes_memory(const struct cgpu_array3d_descriptor *asked)
{
    return (asked->flags & (CU_ARRAY3D_SPARSE | CU_ARRAY3D_DEFERRED_MAPPING)) == 0;
}

/* The bytes of an array like ASKED, as the driver reports them. */
static uint64_t
size_of_array(const struct cgpu_array3d_descriptor *asked)
{
    struct cgpu_array3d_descriptor deferred = *asked;
    struct cgpu_array_requirements needs = {0};
    CUarray twin;
    CUdevice device;
    deferred.flags |= CU_ARRAY3D_DEFERRED_MAPPING;
    if (!CGPU_REAL_HAS(cuArrayGetMemoryRequirements) ||
        cgpu_real.cuCtxGetDevice(&device) != CUDA_SUCCESS ||
        cgpu_real.cuArray3DCreate_v2(&twin, &deferred) != CUDA_SUCCESS) {
        return estimate(asked, 1);
    }
    CUresult status = cgpu_real.cuArrayGetMemoryRequirements(&needs, twin, device);
    cgpu_real.cuArrayDestroy(twin);
    return status == CUDA_SUCCESS && needs.size != 0 ? needs.size : estimate(asked, 1);
}

static uint64_t
size_of_mipmapped(const struct cgpu_array3d_descriptor *asked, unsigned int levels)
{
    struct cgpu_array3d_descriptor deferred = *asked;
    struct cgpu_array_requirements needs = {0};
    CUmipmappedArray twin;
    CUdevice device;
    deferred.flags |= CU_ARRAY3D_DEFERRED_MAPPING;
    if (!CGPU_REAL_HAS(cuMipmappedArrayGetMemoryRequirements) ||
        cgpu_real.cuCtxGetDevice(&device) != CUDA_SUCCESS ||
        cgpu_real.cuMipmappedArrayCreate(&twin, &deferred, levels) != CUDA_SUCCESS) {
        return estimate(asked, levels);
    }
    CUresult status = cgpu_real.cuMipmappedArrayGetMemoryRequirements(&needs, twin, device);
    cgpu_real.cuMipmappedArrayDestroy(twin);
    return status == CUDA_SUCCESS && needs.size != 0 ? needs.size : estimate(asked, levels);
}

/* Charge for ASKED; nothing for an array without memory. */
static CUresult
begin(struct cgpu_pending *pending, const struct cgpu_array3d_descriptor *asked)
{
    return takes_memory(asked) ? cgpu_pending_begin_whole(pending, size_of_array(asked))
                               : cgpu_pending_begin(pending, 0);
}

/* Keep the array's charge, or cancel it. STATUS is the driver's answer. */
static CUresult
finish(struct cgpu_pending *pending, CUresult status, const CUarray *array)
{
    if (status != CUDA_SUCCESS) {
        cgpu_pending_cancel(pending);
        return status;
    }
    status = cgpu_pending_commit(pending, CGPU_KIND_ARRAY, (uint64_t)(uintptr_t)*array, 0);
    if (status != CUDA_SUCCESS) {
        cgpu_real.cuArrayDestroy(*array);
    }
    return status;
}

static void
widen(struct cgpu_array3d_descriptor *wide, size_t width, size_t height, int format,
      unsigned int channels)
{
    *wide = (struct cgpu_array3d_descriptor){
        .width = width, .height = height, .format = format, .channels = channels};
}

CUresult
cgpu_array_create(CUresult (*real)(CUarray *, const struct cgpu_array_descriptor *), CUarray *array,
                  const struct cgpu_array_descriptor *asked)
{
    struct cgpu_pending pending;
    struct cgpu_array3d_descriptor wide;
    if (asked == NULL || array == NULL) {
        return real(array, asked);
    }
    widen(&wide, asked->width, asked->height, asked->format, asked->channels);
    CUresult status = begin(&pending, &wide);
    return status != CUDA_SUCCESS ? status : finish(&pending, real(array, asked), array);
}

CUresult
cgpu_array_create_v1(CUresult (*real)(CUarray *, const struct cgpu_array_descriptor_v1 *),
                     CUarray *array, const struct cgpu_array_descriptor_v1 *asked)
{
    struct cgpu_pending pending;
    struct cgpu_array3d_descriptor wide;
    if (asked == NULL || array == NULL) {
        return real(array, asked);
    }
    widen(&wide, asked->width, asked->height, asked->format, asked->channels);
    CUresult status = begin(&pending, &wide);
    return status != CUDA_SUCCESS ? status : finish(&pending, real(array, asked), array);
}

CUresult
cgpu_array_create_3d(CUresult (*real)(CUarray *, const struct cgpu_array3d_descriptor *),
                     CUarray *array, const struct cgpu_array3d_descriptor *asked)
{
    struct cgpu_pending pending;
    if (asked == NULL || array == NULL) {
        return real(array, asked);
    }
    CUresult status = begin(&pending, asked);
    return status != CUDA_SUCCESS ? status : finish(&pending, real(array, asked), array);
}

CUresult
cgpu_array_create_3d_v1(CUresult (*real)(CUarray *, const struct cgpu_array3d_descriptor_v1 *),
                        CUarray *array, const struct cgpu_array3d_descriptor_v1 *asked)
{
    struct cgpu_pending pending;
    struct cgpu_array3d_descriptor wide;
    if (asked == NULL || array == NULL) {
        return real(array, asked);
    }
    widen(&wide, asked->width, asked->height, asked->format, asked->channels);
    wide.depth = asked->depth;
    wide.flags = asked->flags;
    CUresult status = begin(&pending, &wide);
    return status != CUDA_SUCCESS ? status : finish(&pending, real(array, asked), array);
}

/*
 * Destroy ARRAY. As with linear memory, its holding is removed before the real call, its charge
 * after it.
 */
CUresult
cgpu_array_destroy(CUresult (*real)(CUarray), CUarray array)
{
    struct cgpu_holding holding;
    bool held = cgpu_account_take(CGPU_KIND_ARRAY, (uint64_t)(uintptr_t)array, &holding);
    CUresult status = cgpu_account_end_free(held ? &holding : NULL, real(array));
    if (status == CUDA_SUCCESS) {
        cgpu_physical_array_gone((uint64_t)(uintptr_t)array);
    }
    return status;
}

CUresult
cgpu_array_create_mipmapped(CUresult (*real)(CUmipmappedArray *,
                                             const struct cgpu_array3d_descriptor *, unsigned int),
                            CUmipmappedArray *array, const struct cgpu_array3d_descriptor *asked,
                            unsigned int levels)
{
    struct cgpu_pending pending;
    if (asked == NULL || array == NULL) {
        return real(array, asked, levels);
    }
    CUresult status = takes_memory(asked)
                          ? cgpu_pending_begin_whole(&pending, size_of_mipmapped(asked, levels))
                          : cgpu_pending_begin(&pending, 0);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    status = real(array, asked, levels);
    if (status != CUDA_SUCCESS) {
        cgpu_pending_cancel(&pending);
        return status;
    }
    status = cgpu_pending_commit(&pending, CGPU_KIND_MIPMAPPED, (uint64_t)(uintptr_t)*array, 0);
    if (status != CUDA_SUCCESS) {
        cgpu_real.cuMipmappedArrayDestroy(*array);
    }
    return status;
}

CUresult
cgpu_array_destroy_mipmapped(CUresult (*real)(CUmipmappedArray), CUmipmappedArray array)
{
    struct cgpu_holding holding;
    bool held = cgpu_account_take(CGPU_KIND_MIPMAPPED, (uint64_t)(uintptr_t)array, &holding);
    CUresult status = cgpu_account_end_free(held ? &holding : NULL, real(array));
    if (status == CUDA_SUCCESS) {
        cgpu_physical_array_gone((uint64_t)(uintptr_t)array);
    }
    return status;
}
