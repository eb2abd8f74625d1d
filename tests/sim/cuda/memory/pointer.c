/* What can be asked of an address. */
#include <string.h>

#include "sim.h"

enum { /* CUpointer_attribute */
       CONTEXT = 1,
       MEMORY_TYPE,
       DEVICE_POINTER,
       HOST_POINTER,
       SYNC_MEMOPS = 6,
       BUFFER_ID,
       IS_MANAGED,
       DEVICE_ORDINAL,
       IS_IPC_CAPABLE,
       RANGE_START,
       RANGE_SIZE,
       MAPPED,
       HANDLE_TYPES,
       RDMA_CAPABLE,
       ACCESS_FLAGS,
       POOL,
       MAPPING_SIZE,
       MAPPING_BASE,
       BLOCK_ID,
};
enum { TYPE_HOST = 1, TYPE_DEVICE = 2 };

static int
is_host(const struct sim_region *region)
{
    return region->kind == SIM_HOST || region->kind == SIM_REGISTERED;
}

/* Bytes of each value; 0: no such attribute. */
static const unsigned char sizes[] = {
    [CONTEXT] = 8,      [MEMORY_TYPE] = 4,    [DEVICE_POINTER] = 8, [HOST_POINTER] = 8,
    [SYNC_MEMOPS] = 4,  [BUFFER_ID] = 8,      [IS_MANAGED] = 4,     [DEVICE_ORDINAL] = 4,
    [RANGE_START] = 8,  [IS_IPC_CAPABLE] = 4, [RANGE_SIZE] = 8,     [MAPPED] = 4,
    [HANDLE_TYPES] = 8, [RDMA_CAPABLE] = 4,   [ACCESS_FLAGS] = 4,   [POOL] = 8,
    [MAPPING_SIZE] = 8, [MAPPING_BASE] = 8,   [BLOCK_ID] = 8,
};

static uint64_t
value_of(const struct sim_region *region, unsigned attribute, uint64_t address)
{
    switch (attribute) {
    case CONTEXT:
        return (uint64_t)(uintptr_t)region->context;
    case MEMORY_TYPE:
        return is_host(region) ? TYPE_HOST : TYPE_DEVICE;
    case DEVICE_POINTER:
    case HOST_POINTER:
        return address;
    case BUFFER_ID:
    case BLOCK_ID:
        return region->id;
    case IS_MANAGED:
        return region->kind == SIM_MANAGED || (region->kind == SIM_GLOBAL && region->flags != 0);
    case DEVICE_ORDINAL:
        return region->device->ordinal;
    case IS_IPC_CAPABLE:
        return region->kind == SIM_LINEAR;
    case RANGE_START:
    case MAPPING_BASE:
        return region->base;
    case RANGE_SIZE:
    case MAPPING_SIZE:
        return region->bytes;
    case MAPPED:
        return 1;
    case HANDLE_TYPES:
        return region->physical == NULL ? 0 : region->physical->handle_types;
    case ACCESS_FLAGS:
        return region->physical == NULL ? 3 : region->access;
    case POOL:
        return (uint64_t)(uintptr_t)region->pool;
    default: /* SYNC_MEMOPS, RDMA_CAPABLE */
        return 0;
    }
}

/* The value and its size in bytes; 0: no such attribute. */
static size_t
attribute_of(const struct sim_region *region, unsigned attribute, uint64_t address, uint64_t *value)
{
    *value = value_of(region, attribute, address);
    return attribute < sizeof sizes ? sizes[attribute] : 0;
}

SIM_API(cuPointerGetAttribute, (void *out, unsigned attribute, uint64_t address),
        (out, attribute, address))
{
    struct sim_region *region = sim_region_find(address);
    uint64_t value;
    if (out == NULL || region == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (attribute == HOST_POINTER && !is_host(region) && region->kind != SIM_MANAGED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    size_t size = attribute_of(region, attribute, address, &value);
    if (size == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy(out, &value, size); /* little-endian */
    return CUDA_SUCCESS;
}

/* Of an address that is not the driver's, every attribute is zero, and that is no error. */
SIM_API(cuPointerGetAttributes,
        (unsigned count, const unsigned *attributes, void **out, uint64_t address),
        (count, attributes, out, address))
{
    struct sim_region *region = sim_region_find(address);
    const struct sim_device nowhere = {.ordinal = (uint32_t)-2};
    struct sim_region unknown = {.kind = SIM_HOST, .device = (struct sim_device *)&nowhere};
    if (attributes == NULL || out == NULL || count == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (unsigned i = 0; i < count; i++) {
        uint64_t value = 0;
        size_t size =
            attribute_of(region == NULL ? &unknown : region, attributes[i], address, &value);
        if (size == 0) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (region == NULL && attributes[i] != DEVICE_ORDINAL) {
            value = 0;
        } else if (attributes[i] == HOST_POINTER && !is_host(region) &&
                   region->kind != SIM_MANAGED) {
            value = 0;
        }
        memcpy(out[i], &value, size);
    }
    return CUDA_SUCCESS;
}

SIM_API(cuPointerSetAttribute, (const void *value, unsigned attribute, uint64_t address),
        (value, attribute, address))
{
    int good = value != NULL && attribute == SYNC_MEMOPS && sim_region_find(address) != NULL;
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API(cuMemGetAddressRange_v2, (uint64_t *base, size_t *bytes, uint64_t address),
        (base, bytes, address))
{
    struct sim_region *region = sim_region_find(address);
    if (region == NULL || is_host(region)) {
        return CUDA_ERROR_NOT_FOUND;
    }
    if (base != NULL) {
        *base = region->base;
    }
    if (bytes != NULL) {
        *bytes = region->bytes;
    }
    return CUDA_SUCCESS;
}
