/* Legacy IPC: another process opens memory by a 64-byte name. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim.h"

struct ipc_handle { /* the 64 bytes of CUipcMemHandle */
    uint64_t magic, tag, offset, bytes;
    uint32_t object, pid;
    uint8_t reserved[24];
};

#define IPC_MAGIC 0x63706947504373ull

/* The pages of an allocation become a region of the machine's file, with what is in them. */
static int
share(struct sim_region *region)
{
    uint32_t object;
    uint64_t base, bytes;
    uint64_t *taken = sim_pages_of(region, &base, &bytes);
    if (cgpu_machine_object_convert(sim_machine(), region->device->machine_index, bytes, &object) !=
        CGPU_MACHINE_OK) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    void *copy = cgpu_machine_object_map(sim_machine(), object, NULL, 0, bytes);
    if (copy == MAP_FAILED) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    memcpy(copy, (void *)(uintptr_t)base, bytes);
    munmap(copy, bytes);
    cgpu_machine_object_map(sim_machine(), object, (void *)(uintptr_t)base, 0, bytes);
    *taken = SIM_SHARED_PAGES | object;
    return CUDA_SUCCESS;
}

SIM_API(cuIpcGetMemHandle, (struct ipc_handle * out, uint64_t address), (out, address))
{
    struct sim_region *region = sim_region_find(address);
    uint64_t base, bytes;
    if (out == NULL || region == NULL || region->kind != SIM_LINEAR) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    uint64_t *taken = sim_pages_of(region, &base, &bytes);
    int result = (*taken & SIM_SHARED_PAGES) != 0 ? CUDA_SUCCESS : share(region);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    memset(out, 0, sizeof *out);
    out->magic = IPC_MAGIC;
    out->object = (uint32_t)*taken;
    out->tag = cgpu_machine_object_tag(sim_machine(), out->object);
    out->offset = region->base - base;
    out->bytes = region->bytes;
    out->pid = (uint32_t)getpid();
    return CUDA_SUCCESS;
}

static int
open_object(const struct ipc_handle *handle, struct sim_context *context, uint64_t *out)
{
    struct cgpu_machine *machine = sim_machine();
    if (cgpu_machine_object_retain(machine, handle->object) != CGPU_MACHINE_OK) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    uint64_t pages = cgpu_machine_object_bytes(machine, handle->object);
    void *mapped = MAP_FAILED;
    if (cgpu_machine_object_tag(machine, handle->object) == handle->tag &&
        handle->offset + handle->bytes <= pages) {
        mapped = cgpu_machine_object_map(machine, handle->object, NULL, 0, pages);
    }
    if (mapped == MAP_FAILED) {
        cgpu_machine_object_release(machine, handle->object);
        return CUDA_ERROR_INVALID_VALUE;
    }
    uint64_t base = (uint64_t)(uintptr_t)mapped;
    struct sim_device *device = sim_device_of_object(handle->object);
    struct sim_region *region = sim_region_add(base, pages, SIM_IMPORTED);
    region->context = context;
    region->device = device != NULL ? device : context->device;
    region->shared = handle->object + 1;
    region->flags = 1; /* times opened */
    *out = base + handle->offset;
    return CUDA_SUCCESS;
}

static int
open_handle(uint64_t *out, const struct ipc_handle *handle, unsigned flags)
{
    struct sim_context *context;
    int result = sim_context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (out == NULL || flags > 1 || handle->magic != IPC_MAGIC) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct sim_region *region = sim_imported_find(handle->object + 1);
    if (region != NULL) {
        region->flags++;
        *out = region->base + handle->offset;
        return CUDA_SUCCESS;
    }
    if (handle->pid == (uint32_t)getpid() &&
        cgpu_machine_object_is_held(sim_machine(), handle->object)) {
        return CUDA_ERROR_INVALID_CONTEXT; /* a process cannot open its own */
    }
    return open_object(handle, context, out);
}

SIM_API(cuIpcOpenMemHandle, (uint64_t *out, struct ipc_handle handle, unsigned flags),
        (out, handle, flags))
{
    return open_handle(out, &handle, flags);
}

SIM_API(cuIpcOpenMemHandle_v2, (uint64_t *out, struct ipc_handle handle, unsigned flags),
        (out, handle, flags))
{
    return open_handle(out, &handle, flags);
}

SIM_API(cuIpcCloseMemHandle, (uint64_t address), (address))
{
    struct sim_region *region = sim_region_find(address);
    if (region == NULL || region->kind != SIM_IMPORTED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return --region->flags > 0 ? CUDA_SUCCESS : sim_region_free(region);
}
