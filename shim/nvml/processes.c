/* Lists of processes: the container's own, with their own pids and their ledger's figures. */
#include <stdbool.h>
#include <string.h>

#include "shim.h"

/*
 * Whether STATUS shows that the driver has a list, perhaps one for which the probe had no room. Any
 * other status is returned to the program.
 */
static bool
is_list(enum nvml_return status)
{
    return status == NVML_SUCCESS || status == NVML_ERROR_INSUFFICIENT_SIZE;
}

static void
put_name(const struct cgpu_process *process, struct nvml_named_process *out)
{
    if (cgpu_nvml_real.nvmlSystemGetProcessName(process->pid, out->name, sizeof out->name) !=
        NVML_SUCCESS) {
        out->name[0] = '\0';
    }
}

/*
 * Write one entry. The layouts of v1, v2, detail and the one with a name each begin like the one
 * before.
 */
static void
put(const struct cgpu_process *process, void *out, size_t stride)
{
    struct nvml_process_detail entry = {.pid = process->pid,
                                        .used_bytes = process->used_bytes,
                                        .gpu_instance = NVML_NO_INSTANCE,
                                        .compute_instance = NVML_NO_INSTANCE};
    memcpy(out, &entry, stride < sizeof entry ? stride : sizeof entry);
    if (stride == sizeof(struct nvml_named_process)) {
        put_name(process, out);
    }
}

enum nvml_return
cgpu_nvml_list(enum nvml_return status, struct nvml_device *device, uint32_t *count, void *out,
               size_t stride)
{
    if (count == NULL || !is_list(status)) {
        return status;
    }
    CGPU_NVML_SCRATCH scratch = cgpu_nvml_scratch_make();
    status = cgpu_nvml_own_processes(device, scratch);
    if (status == NVML_ERROR_NOT_SUPPORTED) {
        /*
         * The GPU is not in the limits, so the list is empty. nvidia-smi pmon asks until it gets a
         * list.
         */
        return cgpu_nvml_list_none(NVML_SUCCESS, count);
    }
    if (status == NVML_SUCCESS) {
        status = cgpu_nvml_fit(count, out, scratch->process_count);
    }
    for (size_t i = 0; status == NVML_SUCCESS && i < scratch->process_count; i++) {
        put(&scratch->processes[i], (char *)out + i * stride, stride);
    }
    return status;
}

enum nvml_return
cgpu_nvml_list_none(enum nvml_return status, uint32_t *count)
{
    if (count == NULL || !is_list(status)) {
        return status;
    }
    *count = 0;
    return NVML_SUCCESS;
}

enum nvml_return
cgpu_nvml_list_status(cgpu_nvml_list_function *real, struct nvml_device *device,
                      const uint32_t *count)
{
    uint32_t none = 0;
    return real(device, count != NULL ? &none : NULL, NULL);
}

enum nvml_return
cgpu_nvml_compute_v1(cgpu_nvml_list_function *real, struct nvml_device *device, uint32_t *count,
                     void *out)
{
    enum nvml_return status = cgpu_nvml_list_status(real, device, count);
    return cgpu_nvml_list(status, device, count, out, sizeof(struct nvml_process_v1));
}

enum nvml_return
cgpu_nvml_compute_v2(cgpu_nvml_list_function *real, struct nvml_device *device, uint32_t *count,
                     void *out)
{
    enum nvml_return status = cgpu_nvml_list_status(real, device, count);
    return cgpu_nvml_list(status, device, count, out, sizeof(struct nvml_process_v2));
}

enum nvml_return
cgpu_nvml_none(cgpu_nvml_list_function *real, struct nvml_device *device, uint32_t *count,
               void *out)
{
    (void)out;
    return cgpu_nvml_list_none(cgpu_nvml_list_status(real, device, count), count);
}

enum { MODE_COMPUTE = 0, MODE_ALL = 3 };

enum nvml_return
cgpu_nvml_detail_list(enum nvml_return (*real)(struct nvml_device *,
                                               struct nvml_process_detail_list *),
                      struct nvml_device *device, struct nvml_process_detail_list *list)
{
    struct nvml_process_detail_list probe = {
        .version = NVML_STRUCT_VERSION(struct nvml_process_detail_list, 1)};
    if (list == NULL) {
        return real(device, NULL);
    }
    probe.mode = list->mode;
    enum nvml_return status = real(device, &probe);
    if (is_list(status) && list->version != probe.version) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    if (list->mode != MODE_COMPUTE && list->mode != MODE_ALL) {
        return cgpu_nvml_list_none(status, &list->count);
    }
    return cgpu_nvml_list(status, device, &list->count, list->processes, sizeof *list->processes);
}

enum nvml_return
cgpu_nvml_accounting_pids(enum nvml_return (*real)(struct nvml_device *, uint32_t *, uint32_t *),
                          struct nvml_device *device, uint32_t *count, uint32_t *pids)
{
    CGPU_NVML_SCRATCH scratch = cgpu_nvml_scratch_make();
    if (scratch == NULL || count == NULL) {
        return scratch == NULL ? NVML_ERROR_UNKNOWN : real(device, NULL, NULL);
    }
    uint32_t all = sizeof scratch->pids / sizeof scratch->pids[0];
    enum nvml_return status = real(device, &all, scratch->pids);
    if (status == NVML_SUCCESS) {
        status = cgpu_nvml_own_processes(device, scratch);
    }
    if (status != NVML_SUCCESS) {
        return status;
    }
    uint32_t own = 0;
    for (uint32_t i = 0; i < all; i++) {
        if (cgpu_nvml_is_own(scratch, scratch->pids[i])) {
            scratch->pids[own++] = scratch->pids[i];
        }
    }
    status = cgpu_nvml_fit(count, pids, own);
    if (status == NVML_SUCCESS && own > 0) {
        memcpy(pids, scratch->pids, own * sizeof *pids);
    }
    return status;
}

enum nvml_return
cgpu_nvml_accounting_stats(enum nvml_return (*real)(struct nvml_device *, uint32_t,
                                                    struct nvml_accounting_stats *),
                           struct nvml_device *device, uint32_t pid,
                           struct nvml_accounting_stats *out)
{
    CGPU_NVML_SCRATCH scratch = cgpu_nvml_scratch_make();
    struct nvml_accounting_stats stats;
    if (out == NULL) {
        return real(device, pid, NULL);
    }
    enum nvml_return status = real(device, pid, &stats);
    if (status == NVML_SUCCESS) {
        status = cgpu_nvml_own_processes(device, scratch);
    }
    if (status != NVML_SUCCESS) {
        return status;
    }
    if (!cgpu_nvml_is_own(scratch, pid)) {
        return NVML_ERROR_NOT_FOUND; /* as the driver answers for a process that it never saw */
    }
    *out = stats;
    return NVML_SUCCESS;
}
