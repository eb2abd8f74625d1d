/* Copies and fills: what is allowed, and the bytes themselves. */
#include <string.h>

#include "sim.h"

enum { HOST = 1, DEVICE = 2, ARRAY = 3, UNIFIED = 4 };

/* One side of a copy, as rows in memory. */
struct side {
    uint64_t address; /* of the first byte */
    uint64_t pitch, slice;
};

struct end {
    uint32_t type;
    uint64_t x, y, z;
    uint64_t host, device;
    struct sim_array *array;
    uint64_t pitch, height;
};

static struct end
source_of(const struct sim_copy *copy)
{
    return (struct end){copy->src_type,
                        copy->src_x,
                        copy->src_y,
                        copy->src_z,
                        (uint64_t)(uintptr_t)copy->src_host,
                        copy->src_device,
                        copy->src_array,
                        copy->src_pitch,
                        copy->src_height};
}

static struct end
destination_of(const struct sim_copy *copy)
{
    return (struct end){copy->dst_type,
                        copy->dst_x,
                        copy->dst_y,
                        copy->dst_z,
                        (uint64_t)(uintptr_t)copy->dst_host,
                        copy->dst_device,
                        copy->dst_array,
                        copy->dst_pitch,
                        copy->dst_height};
}

static struct side
side_of(const struct sim_copy *copy, const struct end *end)
{
    struct side side;
    if (end->type == ARRAY) {
        side.pitch = end->array->width * end->array->element_bytes;
        side.slice = side.pitch * (end->array->height == 0 ? 1 : end->array->height);
        side.address = end->array->base;
    } else {
        side.pitch = end->pitch != 0 ? end->pitch : copy->width;
        side.slice = side.pitch * (end->height != 0 ? end->height : copy->height);
        side.address = end->type == HOST ? end->host : end->device;
    }
    side.address += end->z * side.slice + end->y * side.pitch + end->x;
    return side;
}

static int
check_array(const struct sim_copy *copy, const struct end *end)
{
    struct sim_array *array = sim_object_find(SIM_ARRAY, end->array);
    if (array == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    size_t height = array->height == 0 ? 1 : array->height;
    size_t depth = array->depth == 0 ? 1 : array->depth;
    int fits = end->x + copy->width <= array->width * array->element_bytes &&
               end->y + copy->height <= height && end->z + copy->depth <= depth;
    return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static int
check_end(const struct sim_copy *copy, const struct end *end)
{
    if (end->type < HOST || end->type > UNIFIED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (end->type == ARRAY) {
        return check_array(copy, end);
    }
    if (end->pitch != 0 && end->pitch < end->x + copy->width) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct side side = side_of(copy, end);
    uint64_t bytes = (copy->depth - 1) * side.slice + (copy->height - 1) * side.pitch + copy->width;
    if (side.address == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int good = end->type != DEVICE || sim_region_is_known(side.address, bytes);
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

int
sim_copy_check(const struct sim_copy *copy)
{
    if (copy->width == 0 || copy->height == 0 || copy->depth == 0) {
        return CUDA_SUCCESS;
    }
    struct end source = source_of(copy), destination = destination_of(copy);
    int result = check_end(copy, &source);
    return result == CUDA_SUCCESS ? check_end(copy, &destination) : result;
}

void
sim_copy_run(const struct sim_copy *copy)
{
    if (copy->width == 0 || copy->height == 0 || copy->depth == 0) {
        return;
    }
    struct end source = source_of(copy), destination = destination_of(copy);
    struct side from = side_of(copy, &source), to = side_of(copy, &destination);
    int packed = from.pitch == copy->width && to.pitch == copy->width;
    for (size_t z = 0; z < copy->depth; z++) {
        uint64_t read = from.address + z * from.slice, write = to.address + z * to.slice;
        if (packed) {
            memmove((void *)(uintptr_t)write, (void *)(uintptr_t)read, copy->width * copy->height);
            continue;
        }
        for (size_t y = 0; y < copy->height; y++) {
            memmove((void *)(uintptr_t)(write + y * to.pitch),
                    (void *)(uintptr_t)(read + y * from.pitch), copy->width);
        }
    }
}

/* Only copies within the GPU take its time, at 250 bytes/ns; the copy engines are not simulated. */
uint64_t
sim_copy_duration(const struct sim_copy *copy)
{
    if (copy->src_type == HOST || copy->dst_type == HOST) {
        return 0;
    }
    return copy->width * copy->height * copy->depth / 250;
}

int
sim_fill_check(const struct sim_fill *fill)
{
    uint64_t row = fill->width * fill->element_size;
    if (fill->element_size != 1 && fill->element_size != 2 && fill->element_size != 4) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (fill->dst % fill->element_size != 0 || (fill->height > 1 && fill->pitch < row)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (row == 0 || fill->height == 0) {
        return CUDA_SUCCESS;
    }
    uint64_t bytes = (fill->height - 1) * fill->pitch + row;
    return sim_region_is_known(fill->dst, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void
sim_fill_run(const struct sim_fill *fill)
{
    for (size_t y = 0; y < fill->height; y++) {
        char *row = (char *)(uintptr_t)(fill->dst + y * fill->pitch);
        if (fill->element_size == 1) {
            memset(row, (int)fill->value, fill->width);
            continue;
        }
        for (size_t x = 0; x < fill->width; x++) {
            memcpy(row + x * fill->element_size, &fill->value, fill->element_size);
        }
    }
}
