/* What can be asked and wished for managed memory. It never moves here, so wishes only have to be
 * valid. */
#include <string.h>

#include "sim.h"

static int
is_managed(uint64_t address, size_t bytes)
{
    struct sim_region *region = sim_region_find(address);
    return bytes != 0 && region != NULL && region->kind == SIM_MANAGED &&
           address + bytes <= region->base + region->bytes;
}

static int
wish(uint64_t address, size_t bytes)
{
    return is_managed(address, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API(cuMemAdvise, (uint64_t address, size_t bytes, int advice, int device),
        (address, bytes, advice, device))
{
    (void)advice, (void)device;
    return wish(address, bytes);
}

struct location { /* layout of CUmemLocation */
    int type, id;
};

SIM_API(cuMemAdvise_v2, (uint64_t address, size_t bytes, int advice, struct location location),
        (address, bytes, advice, location))
{
    (void)advice, (void)location;
    return wish(address, bytes);
}

SIM_API_PER_THREAD(cuMemPrefetchAsync, _ptsz,
                   (uint64_t address, size_t bytes, int device, void *stream_handle),
                   (address, bytes, device, stream_handle))
{
    struct sim_stream *stream;
    int result = sim_stream_find(stream_handle, &stream);
    if (result == CUDA_SUCCESS && device != -1 && sim_device(device) == NULL) {
        result = CUDA_ERROR_INVALID_DEVICE;
    }
    return result == CUDA_SUCCESS ? wish(address, bytes) : result;
}

SIM_API_PER_THREAD(cuMemPrefetchAsync_v2, _ptsz,
                   (uint64_t address, size_t bytes, struct location location, unsigned flags,
                    void *stream_handle),
                   (address, bytes, location, flags, stream_handle))
{
    struct sim_stream *stream;
    (void)location;
    int result = flags != 0 ? CUDA_ERROR_INVALID_VALUE : sim_stream_find(stream_handle, &stream);
    return result == CUDA_SUCCESS ? wish(address, bytes) : result;
}

SIM_API_PER_THREAD(cuStreamAttachMemAsync, _ptsz,
                   (void *stream_handle, uint64_t address, size_t bytes, unsigned flags),
                   (stream_handle, address, bytes, flags))
{
    struct sim_stream *stream;
    struct sim_region *region = sim_region_find(address);
    int result = sim_stream_find(stream_handle, &stream);
    if (result == CUDA_SUCCESS && (flags == 0 || flags > 4)) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    size_t whole = bytes == 0 && region != NULL ? 1 : bytes; /* 0: all of it */
    return result == CUDA_SUCCESS ? wish(address, whole) : result;
}

/* No advice is kept: nothing is read-mostly, nobody prefers or accesses anything. */
static int
attribute(void *out, size_t size, unsigned which, uint64_t address, size_t bytes)
{
    if (out == NULL || size < 4 || which < 1 || which > 8 || !is_managed(address, bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int value = which == 1 ? 0 : -2;
    for (size_t at = 0; at + sizeof value <= size; at += sizeof value) {
        memcpy((char *)out + at, &value, sizeof value);
    }
    return CUDA_SUCCESS;
}

SIM_API(cuMemRangeGetAttribute,
        (void *out, size_t size, unsigned which, uint64_t address, size_t bytes),
        (out, size, which, address, bytes))
{
    return attribute(out, size, which, address, bytes);
}

SIM_API(cuMemRangeGetAttributes,
        (void **out, size_t *sizes, unsigned *which, size_t count, uint64_t address, size_t bytes),
        (out, sizes, which, count, address, bytes))
{
    int result = out == NULL || sizes == NULL || which == NULL || count == 0
                     ? CUDA_ERROR_INVALID_VALUE
                     : CUDA_SUCCESS;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        result = attribute(out[i], sizes[i], which[i], address, bytes);
    }
    return result;
}
