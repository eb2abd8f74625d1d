/* Memory of the GPU, shown as that of a GPU as large as the cap. */
#include "shim.h"

static uint64_t
rest(const struct cgpu_nvml_view *view)
{
    /* The cap may have been lowered below the use. */
    return view->used_bytes < view->cap_bytes ? view->cap_bytes - view->used_bytes : 0;
}

enum nvml_return
cgpu_nvml_memory_v1(enum nvml_return (*real)(struct nvml_device *, struct nvml_memory *),
                    struct nvml_device *device, struct nvml_memory *out)
{
    struct nvml_memory gpu;
    struct cgpu_nvml_view view;
    if (out == NULL) {
        return real(device, NULL);
    }
    enum nvml_return status = real(device, &gpu);
    if (status == NVML_SUCCESS) {
        status = cgpu_nvml_view(device, &view);
    }
    if (status != NVML_SUCCESS) {
        return status;
    }
    out->total = view.cap_bytes;
    out->used = view.used_bytes;
    out->free = rest(&view);
    return NVML_SUCCESS;
}

/*
 * Nothing of the cap is shown as reserved: the driver's own memory is not the container's. A later
 * layout may be larger than `gpu`, so it is not passed to the real function.
 */
enum nvml_return
cgpu_nvml_memory_v2(enum nvml_return (*real)(struct nvml_device *, struct nvml_memory_v2 *),
                    struct nvml_device *device, struct nvml_memory_v2 *out)
{
    struct nvml_memory_v2 gpu = {.version = NVML_STRUCT_VERSION(struct nvml_memory_v2, 2)};
    struct cgpu_nvml_view view;
    if (out == NULL) {
        return real(device, NULL);
    }
    enum nvml_return status = real(device, &gpu);
    if (status == NVML_SUCCESS && out->version != gpu.version) {
        status = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    if (status == NVML_SUCCESS) {
        status = cgpu_nvml_view(device, &view);
    }
    if (status != NVML_SUCCESS) {
        return status;
    }
    out->total = view.cap_bytes;
    out->reserved = 0;
    out->used = view.used_bytes;
    out->free = rest(&view);
    return NVML_SUCCESS;
}
