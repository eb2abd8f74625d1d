/* Who uses a GPU, and how much of it. */
#include "sim.h"

#include <stddef.h>
#include <string.h>
#include <time.h>

NVML_DEFINE(nvmlDeviceGetMemoryInfo, struct nvml_device *device, struct nvml_memory *out)
{
    const struct cgpu_machine_gpu *gpu;
    enum nvml_return result = sim_enter_device(__func__, device, out, &gpu);
    if (result) {
        return result;
    }
    out->total = gpu->total_bytes;
    out->used = cgpu_machine_used(sim_machine(), device->index) + gpu->reserved_bytes;
    out->free = out->total - out->used;
    return NVML_SUCCESS;
}

NVML_DEFINE(nvmlDeviceGetMemoryInfo_v2, struct nvml_device *device, struct nvml_memory_v2 *out)
{
    const struct cgpu_machine_gpu *gpu;
    enum nvml_return result = sim_enter_device(__func__, device, out, &gpu);
    if (result) {
        return result;
    }
    if (out->version != NVML_STRUCT_VERSION(struct nvml_memory_v2, 2)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    out->total = gpu->total_bytes;
    out->reserved = gpu->reserved_bytes;
    out->used = cgpu_machine_used(sim_machine(), device->index);
    out->free = out->total - out->reserved - out->used;
    return NVML_SUCCESS;
}

NVML_DEFINE(nvmlDeviceGetBAR1MemoryInfo, struct nvml_device *device, struct nvml_bar1_memory *out)
{
    const struct cgpu_machine_gpu *gpu;
    enum nvml_return result = sim_enter_device(__func__, device, out, &gpu);
    if (result) {
        return result;
    }
    size_t count = 0;
    cgpu_machine_processes(sim_machine(), device->index, NULL, 0, &count);
    out->total = 256ull << 20;
    out->used = (uint64_t)(count + 1) << 21;
    out->free = out->total - out->used;
    return NVML_SUCCESS;
}

/* At most CAPACITY living processes of DEVICE, those that the caller's pid namespace can name. */
static size_t
read_processes(const struct nvml_device *device, struct cgpu_machine_process *out, size_t capacity)
{
    size_t count = 0;
    size_t named = 0;
    cgpu_machine_processes(sim_machine(), device->index, out, capacity, &count);
    for (size_t i = 0; i < count && i < capacity; i++) {
        if (out[i].visible_pid != 0) {
            out[named++] = out[i];
        }
    }
    return named;
}

/* The layouts of v1, v2 and detail are prefixes of one another, and all of this one. */
static void
put_process(void *out, size_t stride, const struct cgpu_machine_process *process)
{
    struct nvml_process_detail entry = {.pid = process->visible_pid,
                                        .used_bytes = process->used_bytes,
                                        .gpu_instance = NVML_NO_INSTANCE,
                                        .compute_instance = NVML_NO_INSTANCE};
    memcpy(out, &entry, stride < sizeof entry ? stride : sizeof entry);
    if (stride == sizeof(struct nvml_named_process)) {
        strcpy(((struct nvml_named_process *)out)->name, process->command);
    }
}

enum nvml_return
sim_list_processes(const char *call, struct nvml_device *device, uint32_t *count, void *out,
                   size_t stride)
{
    struct cgpu_machine_process processes[CGPU_MACHINE_MAX_PROCESSES];
    const struct cgpu_machine_gpu *gpu;
    enum nvml_return result = sim_enter_device(call, device, count, &gpu);
    if (result) {
        return result;
    }
    uint32_t room = *count;
    uint32_t found = (uint32_t)read_processes(device, processes, CGPU_MACHINE_MAX_PROCESSES);
    *count = found;
    if (found > room) {
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    if (found > 0 && out == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    for (uint32_t i = 0; i < found; i++) {
        put_process((char *)out + i * stride, stride, &processes[i]);
    }
    return NVML_SUCCESS;
}

/* The machine has CUDA processes only. */
static enum nvml_return
list_nothing(const char *call, struct nvml_device *device, uint32_t *count)
{
    const struct cgpu_machine_gpu *gpu;
    enum nvml_return result = sim_enter_device(call, device, count, &gpu);
    if (!result) {
        *count = 0;
    }
    return result;
}

#define LISTS(suffix, type)                                                                        \
    NVML_DEFINE(nvmlDeviceGetComputeRunningProcesses##suffix, struct nvml_device *device,          \
                uint32_t *count, struct type *out)                                                 \
    {                                                                                              \
        return sim_list_processes(__func__, device, count, out, sizeof *out);                      \
    }                                                                                              \
    NVML_DEFINE(nvmlDeviceGetGraphicsRunningProcesses##suffix, struct nvml_device *device,         \
                uint32_t *count, struct type *out)                                                 \
    {                                                                                              \
        (void)out;                                                                                 \
        return list_nothing(__func__, device, count);                                              \
    }                                                                                              \
    NVML_DEFINE(nvmlDeviceGetMPSComputeRunningProcesses##suffix, struct nvml_device *device,       \
                uint32_t *count, struct type *out)                                                 \
    {                                                                                              \
        (void)out;                                                                                 \
        return list_nothing(__func__, device, count);                                              \
    }
LISTS(, nvml_process_v1)
LISTS(_v2, nvml_process_v2)
LISTS(_v3, nvml_process_v2)

NVML_DEFINE(nvmlDeviceGetRunningProcessDetailList, struct nvml_device *device,
            struct nvml_process_detail_list *list)
{
    const struct cgpu_machine_gpu *gpu;
    enum nvml_return result = sim_enter_device("", device, list, &gpu); /* faults: below */
    if (result) {
        return result;
    }
    if (list->version != NVML_STRUCT_VERSION(struct nvml_process_detail_list, 1)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    if (list->mode != 0) {
        return list_nothing(__func__, device, &list->count);
    }
    return sim_list_processes(__func__, device, &list->count, list->processes,
                              sizeof *list->processes);
}

int
sim_is_busy(const struct nvml_device *device)
{
    return cgpu_machine_utilization(sim_machine(), device->index) > 0;
}

NVML_DEFINE(nvmlDeviceGetUtilizationRates, struct nvml_device *device, struct nvml_utilization *out)
{
    const struct cgpu_machine_gpu *gpu;
    enum nvml_return result = sim_enter_device(__func__, device, out, &gpu);
    if (!result) {
        out->gpu = cgpu_machine_utilization(sim_machine(), device->index);
        out->memory = cgpu_machine_memory_utilization(sim_machine(), device->index);
    }
    return result;
}

static uint64_t
now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* At most *COUNT samples of DEVICE in OUT, by NVML's size protocol. */
static enum nvml_return
list_samples(const struct nvml_device *device, struct nvml_process_sample *out, uint32_t *count)
{
    struct cgpu_machine_process processes[CGPU_MACHINE_MAX_PROCESSES];
    uint32_t room = out ? *count : 0;
    uint32_t found = (uint32_t)read_processes(device, processes, CGPU_MACHINE_MAX_PROCESSES);
    *count = found;
    if (found == 0) {
        return NVML_ERROR_NOT_FOUND;
    }
    if (found > room) {
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    for (uint32_t i = 0; i < found; i++) {
        out[i] = (struct nvml_process_sample){.pid = processes[i].visible_pid,
                                              .timestamp_us = now_us(),
                                              .sm = processes[i].utilization};
    }
    return NVML_SUCCESS;
}

NVML_DEFINE(nvmlDeviceGetProcessUtilization, struct nvml_device *device,
            struct nvml_process_sample *out, uint32_t *count, uint64_t last_seen_us)
{
    const struct cgpu_machine_gpu *gpu;
    enum nvml_return result = sim_enter_device(__func__, device, count, &gpu);
    (void)last_seen_us;
    return result ? result : list_samples(device, out, count);
}

NVML_DEFINE(nvmlDeviceGetProcessesUtilizationInfo, struct nvml_device *device,
            struct nvml_processes_utilization *info)
{
    struct nvml_process_sample samples[CGPU_MACHINE_MAX_PROCESSES];
    uint32_t count = CGPU_MACHINE_MAX_PROCESSES;
    const struct cgpu_machine_gpu *gpu;
    enum nvml_return result = sim_enter_device(__func__, device, info, &gpu);
    if (result) {
        return result;
    }
    if (info->version != NVML_STRUCT_VERSION(struct nvml_processes_utilization, 1)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    result = list_samples(device, samples, &count);
    uint32_t room = info->processes ? info->count : 0;
    info->count = count;
    if (result || count > room) {
        return result ? result : NVML_ERROR_INSUFFICIENT_SIZE;
    }
    for (uint32_t i = 0; i < count; i++) {
        info->processes[i] = (struct nvml_process_utilization){
            .timestamp_us = samples[i].timestamp_us, .pid = samples[i].pid, .sm = samples[i].sm};
    }
    return NVML_SUCCESS;
}

/* Accounting mode is off. */
NVML_DEFINE(nvmlDeviceGetAccountingPids, struct nvml_device *device, uint32_t *count,
            uint32_t *pids)
{
    (void)pids;
    return list_nothing(__func__, device, count);
}

NVML_DEFINE(nvmlDeviceGetAccountingStats, struct nvml_device *device, uint32_t pid,
            struct nvml_accounting_stats *out)
{
    const struct cgpu_machine_gpu *gpu;
    enum nvml_return result = sim_enter_device(__func__, device, out, &gpu);
    (void)pid;
    return result ? result : NVML_ERROR_NOT_FOUND;
}

/* It keeps no histories. */
NVML_DEFINE(nvmlDeviceGetSamples, struct nvml_device *device, uint32_t type, uint64_t last_seen_us,
            uint32_t *value_type, uint32_t *count, void *out)
{
    const struct cgpu_machine_gpu *gpu;
    enum nvml_return result = sim_enter_device(__func__, device, count, &gpu);
    (void)type, (void)last_seen_us, (void)value_type, (void)out;
    return result ? result : NVML_ERROR_NOT_FOUND;
}
