/* Copies in two and three dimensions, and fills. */
#include "sim.h"

struct copy_2d { /* layout of CUDA_MEMCPY2D_v2 */
    size_t src_x, src_y;
    uint32_t src_type;
    const void *src_host;
    uint64_t src_device;
    struct sim_array *src_array;
    size_t src_pitch;
    size_t dst_x, dst_y;
    uint32_t dst_type;
    void *dst_host;
    uint64_t dst_device;
    struct sim_array *dst_array;
    size_t dst_pitch, width, height;
};

/* CUDA_MEMCPY3D_PEER has contexts where CUDA_MEMCPY3D_v2 has reserved words, else the same layout.
 */

/* With unified addresses, the device field is the address whichever side it is on. */
static struct sim_operation
flat(const struct copy_2d *from)
{
    struct sim_operation operation = {.type = SIM_OP_COPY};
    struct sim_copy *copy = &operation.copy;
    copy->src_x = from->src_x;
    copy->src_y = from->src_y;
    copy->src_type = from->src_type;
    copy->src_host = from->src_host;
    copy->src_device = from->src_device;
    copy->src_array = from->src_array;
    copy->src_pitch = from->src_pitch;
    copy->dst_x = from->dst_x;
    copy->dst_y = from->dst_y;
    copy->dst_type = from->dst_type;
    copy->dst_host = from->dst_host;
    copy->dst_device = from->dst_device;
    copy->dst_array = from->dst_array;
    copy->dst_pitch = from->dst_pitch;
    copy->width = from->width;
    copy->height = from->height;
    copy->depth = 1;
    return operation;
}

static int
copy_2d_now(const struct copy_2d *copy)
{
    if (copy == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct sim_operation operation = flat(copy);
    return sim_stream_do_and_wait(&operation);
}

SIM_API_PER_THREAD(cuMemcpy2D_v2, _ptds, (const struct copy_2d *copy), (copy))
{
    return copy_2d_now(copy);
}

SIM_API_PER_THREAD(cuMemcpy2DUnaligned_v2, _ptds, (const struct copy_2d *copy), (copy))
{
    return copy_2d_now(copy);
}

SIM_API_PER_THREAD(cuMemcpy2DAsync_v2, _ptsz, (const struct copy_2d *copy, void *stream),
                   (copy, stream))
{
    if (copy == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct sim_operation operation = flat(copy);
    return sim_stream_do(stream, &operation);
}

static int
copy_3d(const struct sim_copy *copy, void *stream, int wait)
{
    if (copy == NULL || copy->src_lod != 0 || copy->dst_lod != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct sim_operation operation = {.type = SIM_OP_COPY, .copy = *copy};
    return wait ? sim_stream_do_and_wait(&operation) : sim_stream_do(stream, &operation);
}

SIM_API_PER_THREAD(cuMemcpy3D_v2, _ptds, (const struct sim_copy *copy), (copy))
{
    return copy_3d(copy, NULL, 1);
}

SIM_API_PER_THREAD(cuMemcpy3DAsync_v2, _ptsz, (const struct sim_copy *copy, void *stream),
                   (copy, stream))
{
    return copy_3d(copy, stream, 0);
}

SIM_API_PER_THREAD(cuMemcpy3DPeer, _ptds, (const struct sim_copy *copy), (copy))
{
    return copy_3d(copy, NULL, 1);
}

SIM_API_PER_THREAD(cuMemcpy3DPeerAsync, _ptsz, (const struct sim_copy *copy, void *stream),
                   (copy, stream))
{
    return copy_3d(copy, stream, 0);
}

/* On device memory a fill does not make the caller wait, whatever its name says. */
static int
fill(void *stream, uint64_t to, size_t pitch, uint32_t value, uint32_t size, size_t width,
     size_t height)
{
    struct sim_operation operation = {.type = SIM_OP_FILL,
                                      .fill = {to, pitch, value, size, width, height}};
    return sim_stream_do(stream, &operation);
}

#define FILL(bits, type)                                                                           \
    SIM_API_PER_THREAD(cuMemsetD##bits##_v2, _ptds, (uint64_t to, type value, size_t count),       \
                       (to, value, count))                                                         \
    {                                                                                              \
        return fill(NULL, to, 0, value, sizeof(type), count, 1);                                   \
    }                                                                                              \
    SIM_API_PER_THREAD(cuMemsetD##bits##Async, _ptsz,                                              \
                       (uint64_t to, type value, size_t count, void *stream),                      \
                       (to, value, count, stream))                                                 \
    {                                                                                              \
        return fill(stream, to, 0, value, sizeof(type), count, 1);                                 \
    }                                                                                              \
    SIM_API(cuMemsetD##bits, (uint32_t to, type value, uint32_t count), (to, value, count))        \
    {                                                                                              \
        return fill(NULL, to, 0, value, sizeof(type), count, 1);                                   \
    }                                                                                              \
    SIM_API_PER_THREAD(cuMemsetD2D##bits##_v2, _ptds,                                              \
                       (uint64_t to, size_t pitch, type value, size_t width, size_t height),       \
                       (to, pitch, value, width, height))                                          \
    {                                                                                              \
        return fill(NULL, to, pitch, value, sizeof(type), width, height);                          \
    }                                                                                              \
    SIM_API_PER_THREAD(                                                                            \
        cuMemsetD2D##bits##Async, _ptsz,                                                           \
        (uint64_t to, size_t pitch, type value, size_t width, size_t height, void *stream),        \
        (to, pitch, value, width, height, stream))                                                 \
    {                                                                                              \
        return fill(stream, to, pitch, value, sizeof(type), width, height);                        \
    }

FILL(8, uint8_t)
FILL(16, uint16_t)
FILL(32, uint32_t)
