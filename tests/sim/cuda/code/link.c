/* The linker of the driver: one input passes through, PTX texts are joined; there is no compiler.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "sim.h"

enum { INPUT_CUBIN = 0, INPUT_PTX = 1, INPUT_FATBINARY = 2 };

struct sim_link {
    struct sim_object object;
    char *data;
    size_t bytes;
    unsigned inputs, type;
};

static int
create(struct sim_link **out)
{
    struct sim_context *context;
    int result = out == NULL ? CUDA_ERROR_INVALID_VALUE : sim_context_current(&context);
    if (result == CUDA_SUCCESS) {
        *out = sim_object_new(SIM_LINK, sizeof **out, NULL);
    }
    return result;
}

SIM_API(cuLinkCreate, (unsigned count, void *options, void *values, struct sim_link **out),
        (count, options, values, out))
{
    (void)count, (void)options, (void)values;
    return create(out);
}

SIM_API(cuLinkCreate_v2, (unsigned count, void *options, void *values, struct sim_link **out),
        (count, options, values, out))
{
    (void)count, (void)options, (void)values;
    return create(out);
}

static int
add(struct sim_link *handle, unsigned type, const void *data, size_t bytes)
{
    struct sim_link *link = sim_object_find(SIM_LINK, handle);
    if (link == NULL || data == NULL || bytes == 0) {
        return link == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    }
    if (type > INPUT_FATBINARY || (link->inputs > 0 && (type != INPUT_PTX || link->type != type))) {
        sim_log("linking of several binaries is not simulated");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    size_t length = type == INPUT_PTX ? strnlen(data, bytes) : bytes;
    link->data = realloc(link->data, link->bytes + length + 1);
    memcpy(link->data + link->bytes, data, length);
    link->bytes += length;
    link->data[link->bytes] = '\0';
    link->type = type;
    link->inputs++;
    return CUDA_SUCCESS;
}

#define OPTIONS const char *name, unsigned count, void *options, void *values

SIM_API(cuLinkAddData, (struct sim_link * link, unsigned type, void *data, size_t bytes, OPTIONS),
        (link, type, data, bytes, name, count, options, values))
{
    (void)name, (void)count, (void)options, (void)values;
    return add(link, type, data, bytes);
}

SIM_API(cuLinkAddData_v2,
        (struct sim_link * link, unsigned type, void *data, size_t bytes, OPTIONS),
        (link, type, data, bytes, name, count, options, values))
{
    (void)name, (void)count, (void)options, (void)values;
    return add(link, type, data, bytes);
}

SIM_API(cuLinkComplete, (struct sim_link * handle, void **out, size_t *bytes), (handle, out, bytes))
{
    struct sim_link *link = sim_object_find(SIM_LINK, handle);
    if (link == NULL || out == NULL || link->data == NULL) {
        return link == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    }
    *out = link->data;
    if (bytes != NULL) {
        *bytes = link->bytes;
    }
    return CUDA_SUCCESS;
}

SIM_API(cuLinkDestroy, (struct sim_link * handle), (handle))
{
    struct sim_link *link = sim_object_find(SIM_LINK, handle);
    if (link == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    free(link->data);
    sim_object_delete(link);
    return CUDA_SUCCESS;
}
