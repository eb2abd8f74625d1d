/* Arrays and mipmapped arrays. Their real size is that of whole blocks of the GPU's tiled layout.
 */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

enum { BLOCK_ROW = 64, BLOCK_ROWS = 8, SMALLEST = 512, ARRAY_ALIGNMENT = 64 << 10 };
enum { LAYERED = 1, CUBEMAP = 4, SPARSE = 0x40, DEFERRED = 0x80 };

struct descriptor { /* layout of CUDA_ARRAY3D_DESCRIPTOR_v2 */
    size_t width, height, depth;
    uint32_t format, channels, flags;
};

struct flat_descriptor { /* layout of CUDA_ARRAY_DESCRIPTOR_v2 */
    size_t width, height;
    uint32_t format, channels;
};

struct sim_mipmap {
    struct sim_object object;
    struct sim_array **levels;
    uint32_t level_count, flags;
    uint64_t base, bytes, taken, size;
};

static uint32_t
format_bytes(uint32_t format)
{
    switch (format) {
    case 0x01:
    case 0x08:
        return 1;
    case 0x02:
    case 0x09:
    case 0x10:
        return 2;
    case 0x03:
    case 0x0a:
    case 0x20:
        return 4;
    default:
        return 0;
    }
}

static size_t
at_least_one(size_t value)
{
    return value == 0 ? 1 : value;
}

static uint64_t
up(uint64_t value, uint64_t step)
{
    return (value + step - 1) / step * step;
}

static uint64_t
tiled_bytes(const struct descriptor *description, uint32_t element)
{
    uint64_t row = up(description->width * element, BLOCK_ROW);
    uint64_t rows = at_least_one(description->height);
    rows = rows > 1 ? up(rows, BLOCK_ROWS) : 1;
    return up(row * rows * at_least_one(description->depth), SMALLEST);
}

static int
check(const struct descriptor *description)
{
    int channels =
        description->channels == 1 || description->channels == 2 || description->channels == 4;
    if (description->width == 0 || !channels || format_bytes(description->format) == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (description->width > 131072 || description->height > 65536 || description->depth > 16384) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if ((description->flags & CUBEMAP) != 0 &&
        (description->depth % 6 != 0 || description->width != description->height)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return (description->flags & SPARSE) != 0 ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

static struct sim_array *
new_array(struct sim_context *context, const struct descriptor *description, uint64_t base)
{
    struct sim_array *array = sim_object_new(SIM_ARRAY, sizeof *array, context);
    array->width = description->width;
    array->height = description->height;
    array->depth = description->depth;
    array->format = description->format;
    array->channels = description->channels;
    array->flags = description->flags;
    array->element_bytes = format_bytes(description->format) * description->channels;
    array->bytes = tiled_bytes(description, array->element_bytes);
    array->base = base;
    return array;
}

/* Device memory for BYTES, unless the mapping is deferred: then memory comes from
 * cuMemMapArrayAsync. */
static int
back(struct sim_context *context, uint32_t flags, uint64_t bytes, uint64_t *base, uint64_t *taken)
{
    *taken = (flags & DEFERRED) != 0 ? 0 : sim_round(bytes);
    if (*taken != 0 && sim_take(context->device, *taken) != CUDA_SUCCESS) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *base = sim_pages_map(bytes, 4096, 0);
    if (*base == 0) {
        sim_give(context->device, *taken);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

static int
create(struct sim_array **out, const struct descriptor *description)
{
    struct sim_context *context;
    uint64_t base, taken;
    int result = sim_context_current(&context);
    if (result == CUDA_SUCCESS) {
        result = out == NULL ? CUDA_ERROR_INVALID_VALUE : check(description);
    }
    if (result == CUDA_SUCCESS) {
        result = sim_capture_forbids();
    }
    uint32_t element = format_bytes(description->format) * description->channels;
    uint64_t bytes = tiled_bytes(description, element);
    if (result == CUDA_SUCCESS) {
        result = back(context, description->flags, bytes, &base, &taken);
    }
    if (result == CUDA_SUCCESS) {
        *out = new_array(context, description, base);
        (*out)->taken = taken;
    }
    return result;
}

SIM_API(cuArray3DCreate_v2, (struct sim_array * *out, const struct descriptor *description),
        (out, description))
{
    return description == NULL ? CUDA_ERROR_INVALID_VALUE : create(out, description);
}

SIM_API(cuArrayCreate_v2, (struct sim_array * *out, const struct flat_descriptor *flat),
        (out, flat))
{
    if (flat == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct descriptor description = {flat->width, flat->height, 0, flat->format, flat->channels, 0};
    return create(out, &description);
}

/* The first versions: sizes of 32 bits. */
SIM_API(cuArrayCreate, (struct sim_array * *out, const uint32_t *flat), (out, flat))
{
    if (flat == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct descriptor description = {flat[0], flat[1], 0, flat[2], flat[3], 0};
    return create(out, &description);
}

SIM_API(cuArray3DCreate, (struct sim_array * *out, const uint32_t *old), (out, old))
{
    if (old == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct descriptor description = {old[0], old[1], old[2], old[3], old[4], old[5]};
    return create(out, &description);
}

void
sim_array_free(struct sim_array *array)
{
    if (array->mipmap == NULL) {
        sim_pages_unmap(array->base, array->bytes);
        sim_give(array->object.owner->device, array->taken);
    }
    sim_object_delete(array);
}

SIM_API(cuArrayDestroy, (struct sim_array * handle), (handle))
{
    struct sim_array *array = sim_object_find(SIM_ARRAY, handle);
    if (array == NULL || array->mipmap != NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    sim_array_free(array);
    return CUDA_SUCCESS;
}

SIM_API(cuArray3DGetDescriptor_v2, (struct descriptor * out, struct sim_array *handle),
        (out, handle))
{
    struct sim_array *array = sim_object_find(SIM_ARRAY, handle);
    if (out == NULL || array == NULL) {
        return array == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    }
    *out = (struct descriptor){array->width,  array->height,   array->depth,
                               array->format, array->channels, array->flags};
    return CUDA_SUCCESS;
}

SIM_API(cuArrayGetDescriptor_v2, (struct flat_descriptor * out, struct sim_array *handle),
        (out, handle))
{
    struct sim_array *array = sim_object_find(SIM_ARRAY, handle);
    if (out == NULL || array == NULL) {
        return array == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    }
    *out = (struct flat_descriptor){array->width, array->height, array->format, array->channels};
    return CUDA_SUCCESS;
}

struct requirements { /* layout of CUDA_ARRAY_MEMORY_REQUIREMENTS */
    size_t size, alignment;
    uint32_t reserved[4];
};

static int
require(struct requirements *out, uint64_t bytes, uint32_t flags, int ordinal)
{
    if (sim_device(ordinal) == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (out == NULL || (flags & DEFERRED) == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memset(out, 0, sizeof *out);
    out->size = up(bytes, ARRAY_ALIGNMENT);
    out->alignment = ARRAY_ALIGNMENT;
    return CUDA_SUCCESS;
}

SIM_API(cuArrayGetMemoryRequirements,
        (struct requirements * out, struct sim_array *handle, int ordinal), (out, handle, ordinal))
{
    struct sim_array *array = sim_object_find(SIM_ARRAY, handle);
    return array == NULL ? CUDA_ERROR_INVALID_HANDLE
                         : require(out, array->bytes, array->flags, ordinal);
}

SIM_API(cuMipmappedArrayGetMemoryRequirements,
        (struct requirements * out, struct sim_mipmap *handle, int ordinal), (out, handle, ordinal))
{
    struct sim_mipmap *mipmap = sim_object_find(SIM_MIPMAP, handle);
    return mipmap == NULL ? CUDA_ERROR_INVALID_HANDLE
                          : require(out, mipmap->bytes, mipmap->flags, ordinal);
}

static struct descriptor
level_of(const struct descriptor *top, uint32_t level)
{
    struct descriptor description = *top;
    int layers = (top->flags & (LAYERED | CUBEMAP)) != 0;
    description.width = at_least_one(top->width >> level);
    description.height = top->height == 0 ? 0 : at_least_one(top->height >> level);
    description.depth = top->depth == 0 || layers ? top->depth : at_least_one(top->depth >> level);
    return description;
}

static int
fill_levels(struct sim_context *context, struct sim_mipmap *mipmap, const struct descriptor *top)
{
    uint32_t element = format_bytes(top->format) * top->channels;
    for (uint32_t level = 0; level < mipmap->level_count; level++) {
        struct descriptor description = level_of(top, level);
        mipmap->bytes += tiled_bytes(&description, element);
    }
    int result = back(context, top->flags, mipmap->bytes, &mipmap->base, &mipmap->taken);
    uint64_t at = mipmap->base;
    for (uint32_t level = 0; result == CUDA_SUCCESS && level < mipmap->level_count; level++) {
        struct descriptor description = level_of(top, level);
        mipmap->levels[level] = new_array(NULL, &description, at);
        mipmap->levels[level]->mipmap = mipmap;
        at += mipmap->levels[level]->bytes;
    }
    return result;
}

SIM_API(cuMipmappedArrayCreate,
        (struct sim_mipmap * *out, const struct descriptor *top, unsigned levels),
        (out, top, levels))
{
    struct sim_context *context;
    int result = sim_context_current(&context);
    if (result == CUDA_SUCCESS) {
        result = out == NULL || top == NULL || levels == 0 ? CUDA_ERROR_INVALID_VALUE : check(top);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    size_t largest = top->width > top->height ? top->width : top->height;
    uint32_t possible = 64 - (uint32_t)__builtin_clzll(largest);
    struct sim_mipmap *mipmap = sim_object_new(SIM_MIPMAP, sizeof *mipmap, context);
    mipmap->level_count = levels < possible ? levels : possible;
    mipmap->levels = calloc(mipmap->level_count, sizeof(*mipmap->levels));
    mipmap->flags = top->flags;
    result = fill_levels(context, mipmap, top);
    if (result != CUDA_SUCCESS) {
        free(mipmap->levels);
        sim_object_delete(mipmap);
        return result;
    }
    *out = mipmap;
    return CUDA_SUCCESS;
}

void
sim_mipmap_free(struct sim_mipmap *mipmap)
{
    for (uint32_t level = 0; level < mipmap->level_count; level++) {
        sim_array_free(mipmap->levels[level]);
    }
    sim_pages_unmap(mipmap->base, mipmap->bytes);
    sim_give(mipmap->object.owner->device, mipmap->taken);
    free(mipmap->levels);
    sim_object_delete(mipmap);
}

SIM_API(cuMipmappedArrayDestroy, (struct sim_mipmap * handle), (handle))
{
    struct sim_mipmap *mipmap = sim_object_find(SIM_MIPMAP, handle);
    if (mipmap == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    sim_mipmap_free(mipmap);
    return CUDA_SUCCESS;
}

SIM_API(cuMipmappedArrayGetLevel,
        (struct sim_array * *out, struct sim_mipmap *handle, unsigned level), (out, handle, level))
{
    struct sim_mipmap *mipmap = sim_object_find(SIM_MIPMAP, handle);
    if (mipmap == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (out == NULL || level >= mipmap->level_count) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = mipmap->levels[level];
    return CUDA_SUCCESS;
}
