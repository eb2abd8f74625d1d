/*
 * Memory of graphs: an allocation node has its address from the start, and physical memory only
 * from a launch until the memory is freed. What was freed stays reserved for the next launch until
 * trimmed.
 */
#include <string.h>

#include "sim.h"

enum { USED_CURRENT, USED_HIGH, RESERVED_CURRENT, RESERVED_HIGH };

static struct sim_region *
find(uint64_t address)
{
    struct sim_region *region = sim_region_find(address);
    return region != NULL && region->kind == SIM_GRAPH_MEMORY ? region : NULL;
}

int
sim_graph_memory_node(struct sim_context *context, uint64_t bytes, struct sim_operation *operation)
{
    uint64_t address = bytes == 0 ? 0 : sim_pages_map(sim_round(bytes), SIM_GRANULE, 0);
    if (address == 0) {
        return bytes == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct sim_region *region = sim_region_add(address, bytes, SIM_GRAPH_MEMORY);
    region->device = context->device; /* not the context's: graphs outlive contexts */
    region->flags = 1;                /* nodes that have this address */
    operation->type = SIM_OP_ALLOC;
    operation->memory.address = address;
    operation->memory.bytes = bytes;
    return CUDA_SUCCESS;
}

static void
drop_if_unused(struct sim_region *region)
{
    if (region->flags == 0 && region->taken == 0) {
        sim_pages_unmap(region->base, sim_round(region->bytes));
        sim_region_remove(region);
    }
}

void
sim_graph_memory_retain(uint64_t address)
{
    find(address)->flags++;
}

void
sim_graph_memory_release(uint64_t address)
{
    struct sim_region *region = find(address);
    region->flags--;
    drop_if_unused(region);
}

static void
raise_high(uint64_t *high, uint64_t value)
{
    *high = value > *high ? value : *high;
}

/* Have BYTES ready beyond what is in use, as an upload does for the launch that follows. */
int
sim_graph_memory_reserve(struct sim_device *device, uint64_t bytes)
{
    uint64_t needed = device->graph_used + bytes;
    if (needed > device->graph_reserved) {
        if (sim_take(device, needed - device->graph_reserved) != CUDA_SUCCESS) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        device->graph_reserved = needed;
    }
    raise_high(&device->graph_reserved_high, device->graph_reserved);
    return CUDA_SUCCESS;
}

int
sim_graph_memory_activate(struct sim_region *region)
{
    struct sim_device *device = region->device;
    uint64_t bytes = sim_round(region->bytes);
    if (region->taken != 0) {
        return CUDA_ERROR_INVALID_VALUE; /* still allocated by an earlier launch */
    }
    int result = sim_graph_memory_reserve(device, bytes);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    device->graph_used += bytes;
    region->taken = bytes;
    raise_high(&device->graph_used_high, device->graph_used);
    return CUDA_SUCCESS;
}

void
sim_graph_memory_free(struct sim_region *region)
{
    region->device->graph_used -= region->taken;
    region->taken = 0;
    drop_if_unused(region);
}

void
sim_graph_memory_trim(struct sim_device *device)
{
    sim_give(device, device->graph_reserved - device->graph_used);
    device->graph_reserved = device->graph_used;
}

SIM_API(cuDeviceGraphMemTrim, (int ordinal), (ordinal))
{
    struct sim_device *device = sim_device(ordinal);
    if (device == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    sim_graph_memory_trim(device);
    return CUDA_SUCCESS;
}

SIM_API(cuDeviceGetGraphMemAttribute, (int ordinal, unsigned attribute, void *out),
        (ordinal, attribute, out))
{
    struct sim_device *device = sim_device(ordinal);
    if (device == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (out == NULL || attribute > RESERVED_HIGH) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const uint64_t values[] = {device->graph_used, device->graph_used_high, device->graph_reserved,
                               device->graph_reserved_high};
    memcpy(out, &values[attribute], sizeof *values);
    return CUDA_SUCCESS;
}

SIM_API(cuDeviceSetGraphMemAttribute, (int ordinal, unsigned attribute, const void *value),
        (ordinal, attribute, value))
{
    struct sim_device *device = sim_device(ordinal);
    uint64_t wide;
    if (device == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (value == NULL || (attribute != USED_HIGH && attribute != RESERVED_HIGH)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy(&wide, value, sizeof wide);
    if (wide != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (attribute == USED_HIGH) {
        device->graph_used_high = device->graph_used;
    } else {
        device->graph_reserved_high = device->graph_reserved;
    }
    return CUDA_SUCCESS;
}
