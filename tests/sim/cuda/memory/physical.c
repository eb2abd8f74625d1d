/* Physical memory by handle: created, exported, imported; it lives while anything refers to it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vmm.h"

enum { HANDLE_FD = 1, TYPE_PINNED = 1 };

struct allocation_properties { /* layout of CUmemAllocationProp */
    uint32_t type, handle_types, location_type, location_id;
    void *metadata;
    uint8_t flags[8];
};

/* Memory that only this process sees still must be mappable more than once: an anonymous file. */
static int
make_private(struct sim_physical *physical)
{
    physical->fd = (int)syscall(SYS_memfd_create, "cgpu-sim", 1 /* close on exec */);
    if (physical->fd < 0 || ftruncate(physical->fd, (off_t)physical->bytes) != 0) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (physical->device == NULL) {
        return CUDA_SUCCESS;
    }
    return sim_take(physical->device, physical->bytes);
}

static int
make_shared(struct sim_physical *physical)
{
    uint32_t object;
    int status = cgpu_machine_object_create(sim_machine(), physical->device->machine_index,
                                            physical->bytes, &object);
    physical->shared = status == CGPU_MACHINE_OK ? object + 1 : 0;
    return status == CGPU_MACHINE_OK ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void
sim_physical_release(struct sim_physical *physical)
{
    if (physical->handles > 0 || physical->mappings > 0) {
        return;
    }
    if (physical->shared != 0) {
        cgpu_machine_object_release(sim_machine(), physical->shared - 1);
    } else {
        close(physical->fd);
        if (physical->device != NULL) {
            sim_give(physical->device, physical->bytes);
        }
    }
    sim_object_delete(physical);
}

struct sim_device *
sim_device_at(uint32_t location_type, uint32_t location_id)
{
    if (location_type == SIM_LOCATION_LOCALITY_DOMAIN) {
        return location_id >> 8 == 0 ? sim_device((int)location_id) : NULL;
    }
    return location_type == SIM_LOCATION_DEVICE ? sim_device((int)location_id) : NULL;
}

static int
check_properties(const struct allocation_properties *properties, struct sim_device **device)
{
    *device = NULL;
    if (properties == NULL || properties->type != TYPE_PINNED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if ((properties->handle_types & ~(uint32_t)HANDLE_FD) != 0) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (properties->location_type == SIM_LOCATION_DEVICE ||
        properties->location_type == SIM_LOCATION_LOCALITY_DOMAIN) {
        *device = sim_device_at(properties->location_type, properties->location_id);
        return *device == NULL ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
    }
    int host = properties->location_type >= SIM_LOCATION_HOST &&
               properties->location_type <= SIM_LOCATION_HOST_NUMA_CURRENT;
    if (host && properties->handle_types != 0) {
        sim_log("sharing of host-located memory is not simulated");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return host ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API(cuMemCreate,
        (uint64_t *out, size_t bytes, const struct allocation_properties *properties,
         unsigned long long flags),
        (out, bytes, properties, flags))
{
    struct sim_device *device;
    int result = check_properties(properties, &device);
    if (result == CUDA_SUCCESS &&
        (out == NULL || flags != 0 || bytes == 0 || bytes % SIM_GRANULE != 0)) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        result = sim_capture_forbids();
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct sim_physical *physical = sim_object_new(SIM_PHYSICAL, sizeof *physical, NULL);
    physical->device = device;
    physical->bytes = bytes;
    physical->handles = 1;
    physical->handle_types = properties->handle_types;
    physical->location_type = properties->location_type;
    physical->location_id = properties->location_id;
    physical->fd = -1;
    result = properties->handle_types != 0 ? make_shared(physical) : make_private(physical);
    if (result != CUDA_SUCCESS) {
        close(physical->fd);
        sim_object_delete(physical);
        return result;
    }
    *out = (uint64_t)(uintptr_t)physical;
    return CUDA_SUCCESS;
}

static struct sim_physical *
find(uint64_t handle)
{
    struct sim_physical *physical = sim_object_find(SIM_PHYSICAL, (void *)(uintptr_t)handle);
    return physical != NULL && physical->handles > 0 ? physical : NULL;
}

SIM_API(cuMemRelease, (uint64_t handle), (handle))
{
    struct sim_physical *physical = find(handle);
    if (physical == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    physical->handles--;
    sim_physical_release(physical);
    return CUDA_SUCCESS;
}

SIM_API(cuMemRetainAllocationHandle, (uint64_t *out, void *address), (out, address))
{
    struct sim_region *region = sim_region_find((uint64_t)(uintptr_t)address);
    if (out == NULL || region == NULL || region->kind != SIM_MAPPED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    region->physical->handles++;
    *out = (uint64_t)(uintptr_t)region->physical;
    return CUDA_SUCCESS;
}

SIM_API(cuMemGetAllocationPropertiesFromHandle,
        (struct allocation_properties * out, uint64_t handle), (out, handle))
{
    struct sim_physical *physical = find(handle);
    if (out == NULL || physical == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memset(out, 0, sizeof *out);
    out->type = TYPE_PINNED;
    out->handle_types = physical->handle_types;
    out->location_type = physical->location_type;
    out->location_id = physical->location_id;
    return CUDA_SUCCESS;
}

SIM_API(cuMemGetAllocationGranularity,
        (size_t *out, const struct allocation_properties *properties, unsigned option),
        (out, properties, option))
{
    struct sim_device *device;
    int result = check_properties(properties, &device);
    if (result == CUDA_SUCCESS && (out == NULL || option > 1)) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        *out = SIM_GRANULE;
    }
    return result;
}

SIM_API(cuMemExportToShareableHandle,
        (int *out, uint64_t handle, unsigned type, unsigned long long flags),
        (out, handle, type, flags))
{
    struct sim_physical *physical = find(handle);
    if (out == NULL || physical == NULL || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (type != HANDLE_FD || physical->shared == 0) {
        return type == HANDLE_FD ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
    }
    *out = cgpu_machine_object_export(sim_machine(), physical->shared - 1);
    return *out < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

struct sim_device *
sim_device_of_object(uint32_t object)
{
    struct sim_device *device = NULL;
    uint32_t index;
    if (cgpu_machine_object_gpu(sim_machine(), object, &index) == CGPU_MACHINE_OK) {
        for (uint32_t i = 0; i < sim_device_count(); i++) {
            device = sim_device((int)i)->machine_index == index ? sim_device((int)i) : device;
        }
    }
    return device;
}

SIM_API(cuMemImportFromShareableHandle, (uint64_t *out, void *os_handle, unsigned type),
        (out, os_handle, type))
{
    uint32_t object;
    if (out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (type != HANDLE_FD) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    int fd = (int)(intptr_t)os_handle;
    if (cgpu_machine_object_import(sim_machine(), fd, &object) != CGPU_MACHINE_OK) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct sim_device *device = sim_device_of_object(object);
    if (device == NULL) { /* memory of a GPU that this process may not use */
        cgpu_machine_object_release(sim_machine(), object);
        return CUDA_ERROR_INVALID_DEVICE;
    }
    struct sim_physical *physical = sim_object_new(SIM_PHYSICAL, sizeof *physical, NULL);
    physical->device = device;
    physical->bytes = cgpu_machine_object_bytes(sim_machine(), object);
    physical->handles = 1;
    physical->handle_types = HANDLE_FD;
    physical->location_type = SIM_LOCATION_DEVICE;
    physical->location_id = device->ordinal;
    physical->shared = object + 1;
    physical->fd = -1;
    *out = (uint64_t)(uintptr_t)physical;
    return CUDA_SUCCESS;
}
