/* The many names of copying. All of them become one 3D copy. */
#include <string.h>

#include "sim.h"

enum { HOST = 1, DEVICE = 2, ARRAY = 3, UNIFIED = 4 };

/* BYTES from one address to another, on host or device, or unified. */
static struct sim_operation
linear(uint32_t to_type, uint64_t to, uint32_t from_type, uint64_t from, uint64_t bytes)
{
    struct sim_operation operation = {.type = SIM_OP_COPY};
    struct sim_copy *copy = &operation.copy;
    copy->src_type = from_type;
    copy->dst_type = to_type;
    copy->src_host = (const void *)(uintptr_t)from;
    copy->dst_host = (void *)(uintptr_t)to;
    copy->src_device = from;
    copy->dst_device = to;
    copy->width = bytes;
    copy->height = copy->depth = 1;
    return operation;
}

static int
copy_now(uint32_t to_type, uint64_t to, uint32_t from_type, uint64_t from, uint64_t bytes)
{
    struct sim_operation operation = linear(to_type, to, from_type, from, bytes);
    return sim_stream_do_and_wait(&operation);
}

static int
copy_async(void *stream, uint32_t to_type, uint64_t to, uint32_t from_type, uint64_t from,
           uint64_t bytes)
{
    struct sim_operation operation = linear(to_type, to, from_type, from, bytes);
    return sim_stream_do(stream, &operation);
}

#define ADDRESS(pointer) ((uint64_t)(uintptr_t)(pointer))

SIM_API_PER_THREAD(cuMemcpy, _ptds, (uint64_t to, uint64_t from, size_t bytes), (to, from, bytes))
{
    return copy_now(UNIFIED, to, UNIFIED, from, bytes);
}

SIM_API_PER_THREAD(cuMemcpyAsync, _ptsz, (uint64_t to, uint64_t from, size_t bytes, void *stream),
                   (to, from, bytes, stream))
{
    return copy_async(stream, UNIFIED, to, UNIFIED, from, bytes);
}

SIM_API_PER_THREAD(cuMemcpyHtoD_v2, _ptds, (uint64_t to, const void *from, size_t bytes),
                   (to, from, bytes))
{
    return copy_now(DEVICE, to, HOST, ADDRESS(from), bytes);
}

SIM_API(cuMemcpyHtoD, (uint32_t to, const void *from, uint32_t bytes), (to, from, bytes))
{
    return copy_now(DEVICE, to, HOST, ADDRESS(from), bytes);
}

SIM_API_PER_THREAD(cuMemcpyHtoDAsync_v2, _ptsz,
                   (uint64_t to, const void *from, size_t bytes, void *stream),
                   (to, from, bytes, stream))
{
    return copy_async(stream, DEVICE, to, HOST, ADDRESS(from), bytes);
}

SIM_API(cuMemcpyHtoDAsync, (uint32_t to, const void *from, uint32_t bytes, void *stream),
        (to, from, bytes, stream))
{
    return copy_async(stream, DEVICE, to, HOST, ADDRESS(from), bytes);
}

SIM_API_PER_THREAD(cuMemcpyDtoH_v2, _ptds, (void *to, uint64_t from, size_t bytes),
                   (to, from, bytes))
{
    return copy_now(HOST, ADDRESS(to), DEVICE, from, bytes);
}

SIM_API(cuMemcpyDtoH, (void *to, uint32_t from, uint32_t bytes), (to, from, bytes))
{
    return copy_now(HOST, ADDRESS(to), DEVICE, from, bytes);
}

SIM_API_PER_THREAD(cuMemcpyDtoHAsync_v2, _ptsz,
                   (void *to, uint64_t from, size_t bytes, void *stream), (to, from, bytes, stream))
{
    return copy_async(stream, HOST, ADDRESS(to), DEVICE, from, bytes);
}

SIM_API(cuMemcpyDtoHAsync, (void *to, uint32_t from, uint32_t bytes, void *stream),
        (to, from, bytes, stream))
{
    return copy_async(stream, HOST, ADDRESS(to), DEVICE, from, bytes);
}

SIM_API_PER_THREAD(cuMemcpyDtoD_v2, _ptds, (uint64_t to, uint64_t from, size_t bytes),
                   (to, from, bytes))
{
    return copy_now(DEVICE, to, DEVICE, from, bytes);
}

SIM_API(cuMemcpyDtoD, (uint32_t to, uint32_t from, uint32_t bytes), (to, from, bytes))
{
    return copy_now(DEVICE, to, DEVICE, from, bytes);
}

SIM_API_PER_THREAD(cuMemcpyDtoDAsync_v2, _ptsz,
                   (uint64_t to, uint64_t from, size_t bytes, void *stream),
                   (to, from, bytes, stream))
{
    return copy_async(stream, DEVICE, to, DEVICE, from, bytes);
}

SIM_API(cuMemcpyDtoDAsync, (uint32_t to, uint32_t from, uint32_t bytes, void *stream),
        (to, from, bytes, stream))
{
    return copy_async(stream, DEVICE, to, DEVICE, from, bytes);
}

SIM_API_PER_THREAD(cuMemcpyPeer, _ptds,
                   (uint64_t to, void *to_context, uint64_t from, void *from_context, size_t bytes),
                   (to, to_context, from, from_context, bytes))
{
    (void)to_context, (void)from_context;
    return copy_now(DEVICE, to, DEVICE, from, bytes);
}

SIM_API_PER_THREAD(cuMemcpyPeerAsync, _ptsz,
                   (uint64_t to, void *to_context, uint64_t from, void *from_context, size_t bytes,
                    void *stream),
                   (to, to_context, from, from_context, bytes, stream))
{
    (void)to_context, (void)from_context;
    return copy_async(stream, DEVICE, to, DEVICE, from, bytes);
}

/* A one-dimensional array is a row, at a byte offset. */
static struct sim_operation
with_arrays(void *to_array, uint64_t to, void *from_array, uint64_t from, uint64_t bytes)
{
    struct sim_operation operation = linear(UNIFIED, to, UNIFIED, from, bytes);
    if (to_array != NULL) {
        operation.copy.dst_type = ARRAY;
        operation.copy.dst_array = to_array;
        operation.copy.dst_x = to;
    }
    if (from_array != NULL) {
        operation.copy.src_type = ARRAY;
        operation.copy.src_array = from_array;
        operation.copy.src_x = from;
    }
    return operation;
}

static int
array_now(void *to_array, uint64_t to, void *from_array, uint64_t from, uint64_t bytes)
{
    struct sim_operation operation = with_arrays(to_array, to, from_array, from, bytes);
    return sim_stream_do_and_wait(&operation);
}

SIM_API_PER_THREAD(cuMemcpyDtoA_v2, _ptds, (void *to, size_t offset, uint64_t from, size_t bytes),
                   (to, offset, from, bytes))
{
    return array_now(to, offset, NULL, from, bytes);
}

SIM_API_PER_THREAD(cuMemcpyAtoD_v2, _ptds, (uint64_t to, void *from, size_t offset, size_t bytes),
                   (to, from, offset, bytes))
{
    return array_now(NULL, to, from, offset, bytes);
}

SIM_API_PER_THREAD(cuMemcpyHtoA_v2, _ptds,
                   (void *to, size_t offset, const void *from, size_t bytes),
                   (to, offset, from, bytes))
{
    return array_now(to, offset, NULL, ADDRESS(from), bytes);
}

SIM_API_PER_THREAD(cuMemcpyAtoH_v2, _ptds, (void *to, void *from, size_t offset, size_t bytes),
                   (to, from, offset, bytes))
{
    return array_now(NULL, ADDRESS(to), from, offset, bytes);
}

SIM_API_PER_THREAD(cuMemcpyAtoA_v2, _ptds,
                   (void *to, size_t to_offset, void *from, size_t from_offset, size_t bytes),
                   (to, to_offset, from, from_offset, bytes))
{
    return array_now(to, to_offset, from, from_offset, bytes);
}

SIM_API_PER_THREAD(cuMemcpyHtoAAsync_v2, _ptsz,
                   (void *to, size_t offset, const void *from, size_t bytes, void *stream),
                   (to, offset, from, bytes, stream))
{
    struct sim_operation operation = with_arrays(to, offset, NULL, ADDRESS(from), bytes);
    return sim_stream_do(stream, &operation);
}

SIM_API_PER_THREAD(cuMemcpyAtoHAsync_v2, _ptsz,
                   (void *to, void *from, size_t offset, size_t bytes, void *stream),
                   (to, from, offset, bytes, stream))
{
    struct sim_operation operation = with_arrays(NULL, ADDRESS(to), from, offset, bytes);
    return sim_stream_do(stream, &operation);
}
