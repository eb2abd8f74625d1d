/*
 * Utilisation: how much of the GPU the container's own processes use, as the sum of the driver's
 * figures per process. The driver's figures for the whole GPU would show one container what the
 * others do.
 */
#include <stdbool.h>
#include <string.h>
#include <time.h>

#include "shim.h"

enum {
    WINDOW_US = 1000000,
    POWER_SAMPLE = 0, /* nvmlSamplingType_t; 5 to 7: clocks, and the power of a module */
    FIRST_CLOCK_SAMPLE = 5,
    MODULE_POWER_SAMPLE = 7
};

struct sum {
    uint32_t sm, memory, encoder, decoder;
};

/* Whether no sample has a figure. */
static bool
is_idle(const struct nvml_process_sample *samples, uint32_t count)
{
    uint32_t any = 0;
    for (uint32_t i = 0; i < count; i++) {
        any |= samples[i].sm | samples[i].memory | samples[i].encoder | samples[i].decoder;
    }
    return any == 0;
}

/*
 * Get the container's samples by the newer of the two functions, which drivers since 550 have. If
 * there are none, SCRATCH and *OWN do not change.
 */
static enum nvml_return
newer_samples(struct nvml_device *device, uint64_t last_seen_us, struct cgpu_nvml_scratch *scratch,
              uint32_t *own)
{
    struct nvml_processes_utilization all = {
        .version = NVML_STRUCT_VERSION(struct nvml_processes_utilization, 1),
        .count = CGPU_NVML_PROCESSES,
        .last_seen_us = last_seen_us,
        .processes = scratch->utilization};
    enum nvml_return status = cgpu_nvml_real.nvmlDeviceGetProcessesUtilizationInfo(device, &all);
    uint32_t found = 0;
    for (uint32_t i = 0; status == NVML_SUCCESS && i < all.count; i++) {
        const struct nvml_process_utilization *each = &scratch->utilization[i];
        if (cgpu_nvml_is_own(scratch, each->pid)) {
            scratch->samples[found++] =
                (struct nvml_process_sample){each->pid,    each->timestamp_us, each->sm,
                                             each->memory, each->encoder,      each->decoder};
        }
    }
    *own = found > 0 ? found : *own;
    return status;
}

static bool
is_answer(enum nvml_return status)
{
    return status == NVML_SUCCESS || status == NVML_ERROR_NOT_FOUND;
}

/*
 * Put the container's samples that are newer than LAST_SEEN_US at the start of SCRATCH. "Not found"
 * means that there are none, and is no error. On some GPUs (Blackwell, by reports) only the newer
 * function has figures.
 */
static enum nvml_return
own_samples(struct nvml_device *device, uint64_t last_seen_us, struct cgpu_nvml_scratch *scratch,
            uint32_t *own)
{
    uint32_t count = CGPU_NVML_PROCESSES;
    *own = 0;
    if (scratch == NULL) {
        return NVML_ERROR_UNKNOWN;
    }
    enum nvml_return status = cgpu_nvml_own_processes(device, scratch);
    if (status != NVML_SUCCESS) {
        return status;
    }
    status = cgpu_nvml_real.nvmlDeviceGetProcessUtilization(device, scratch->samples, &count,
                                                            last_seen_us);
    for (uint32_t i = 0; status == NVML_SUCCESS && i < count; i++) {
        if (cgpu_nvml_is_own(scratch, scratch->samples[i].pid)) {
            scratch->samples[(*own)++] = scratch->samples[i];
        }
    }
    if (is_idle(scratch->samples, *own) &&
        is_answer(newer_samples(device, last_seen_us, scratch, own))) {
        return NVML_SUCCESS;
    }
    return is_answer(status) ? NVML_SUCCESS : status;
}

static uint64_t
now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static uint32_t
percent(uint32_t sum)
{
    return sum < 100 ? sum : 100;
}

/* The container's utilisation in the last second, in which each process has one sample. */
static enum nvml_return
sum_own(struct nvml_device *device, struct sum *sum)
{
    CGPU_NVML_SCRATCH scratch = cgpu_nvml_scratch_make();
    uint32_t own;
    enum nvml_return status = own_samples(device, now_us() - WINDOW_US, scratch, &own);
    *sum = (struct sum){0};
    for (uint32_t i = 0; i < own; i++) {
        sum->sm += percent(scratch->samples[i].sm);
        sum->memory += percent(scratch->samples[i].memory);
        sum->encoder += percent(scratch->samples[i].encoder);
        sum->decoder += percent(scratch->samples[i].decoder);
    }
    return status;
}

enum nvml_return
cgpu_nvml_utilization(enum nvml_return (*real)(struct nvml_device *, struct nvml_utilization *),
                      struct nvml_device *device, struct nvml_utilization *out)
{
    struct nvml_utilization gpu;
    struct sum sum;
    if (out == NULL) {
        return real(device, NULL);
    }
    enum nvml_return status = real(device, &gpu);
    if (status == NVML_SUCCESS) {
        status = sum_own(device, &sum);
    }
    if (status == NVML_SUCCESS) {
        out->gpu = percent(sum.sm);
        out->memory = percent(sum.memory);
    }
    return status;
}

/* Show the utilisation of the encoder or decoder: PART names the one in SUM. */
static enum nvml_return
codec(enum nvml_return (*real)(struct nvml_device *, uint32_t *, uint32_t *),
      struct nvml_device *device, uint32_t *out, uint32_t *period_us, struct sum *sum,
      const uint32_t *part)
{
    uint32_t gpu;
    if (out == NULL) {
        return real(device, NULL, period_us);
    }
    enum nvml_return status = real(device, &gpu, period_us);
    if (status == NVML_SUCCESS) {
        status = sum_own(device, sum);
    }
    if (status == NVML_SUCCESS) {
        *out = percent(*part);
    }
    return status;
}

enum nvml_return
cgpu_nvml_encoder(enum nvml_return (*real)(struct nvml_device *, uint32_t *, uint32_t *),
                  struct nvml_device *device, uint32_t *out, uint32_t *period_us)
{
    struct sum sum;
    return codec(real, device, out, period_us, &sum, &sum.encoder);
}

enum nvml_return
cgpu_nvml_decoder(enum nvml_return (*real)(struct nvml_device *, uint32_t *, uint32_t *),
                  struct nvml_device *device, uint32_t *out, uint32_t *period_us)
{
    struct sum sum;
    return codec(real, device, out, period_us, &sum, &sum.decoder);
}

enum nvml_return
cgpu_nvml_process_samples(enum nvml_return (*real)(struct nvml_device *,
                                                   struct nvml_process_sample *, uint32_t *,
                                                   uint64_t),
                          struct nvml_device *device, struct nvml_process_sample *out,
                          uint32_t *count, uint64_t last_seen_us)
{
    CGPU_NVML_SCRATCH scratch = cgpu_nvml_scratch_make();
    uint32_t own;
    if (count == NULL) {
        return real(device, NULL, NULL, last_seen_us);
    }
    enum nvml_return status = own_samples(device, last_seen_us, scratch, &own);
    if (status != NVML_SUCCESS) {
        return status;
    }
    if (own == 0) {
        *count = 0;
        return NVML_ERROR_NOT_FOUND;
    }
    if (out == NULL) {
        *count = own; /* NULL asks for the size, whatever *count says */
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    status = cgpu_nvml_fit(count, out, own);
    if (status == NVML_SUCCESS) {
        memcpy(out, scratch->samples, own * sizeof *out);
    }
    return status;
}

enum nvml_return
cgpu_nvml_processes_utilization(enum nvml_return (*real)(struct nvml_device *,
                                                         struct nvml_processes_utilization *),
                                struct nvml_device *device, struct nvml_processes_utilization *info)
{
    CGPU_NVML_SCRATCH scratch = cgpu_nvml_scratch_make();
    struct nvml_processes_utilization all = {
        .version = NVML_STRUCT_VERSION(struct nvml_processes_utilization, 1),
        .count = CGPU_NVML_PROCESSES};
    if (scratch == NULL || info == NULL) {
        return scratch == NULL ? NVML_ERROR_UNKNOWN : real(device, NULL);
    }
    bool is_known = info->version == all.version;
    all.last_seen_us = is_known ? info->last_seen_us : 0;
    all.processes = scratch->utilization;
    enum nvml_return status = real(device, &all);
    if (!is_known && (status == NVML_SUCCESS || status == NVML_ERROR_NOT_FOUND)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    if (status == NVML_SUCCESS) {
        status = cgpu_nvml_own_processes(device, scratch);
    }
    if (status != NVML_SUCCESS) {
        return status;
    }
    uint32_t own = 0;
    for (uint32_t i = 0; i < all.count; i++) {
        if (cgpu_nvml_is_own(scratch, scratch->utilization[i].pid)) {
            scratch->utilization[own++] = scratch->utilization[i];
        }
    }
    if (info->processes == NULL) {
        info->count = own;
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    status = cgpu_nvml_fit(&info->count, info->processes, own);
    if (status == NVML_SUCCESS) {
        memcpy(info->processes, scratch->utilization, own * sizeof *info->processes);
    }
    return status;
}

/*
 * Show samples of clocks and power, which belong to no process. Nothing else is shown: histories of
 * utilisation exist for the whole GPU only, and types newer than cgpu may be histories too.
 */
enum nvml_return
cgpu_nvml_samples(enum nvml_return (*real)(struct nvml_device *, uint32_t, uint64_t, uint32_t *,
                                           uint32_t *, void *),
                  struct nvml_device *device, uint32_t type, uint64_t last_seen_us,
                  uint32_t *value_type, uint32_t *count, void *out)
{
    bool is_shown =
        type == POWER_SAMPLE || (type >= FIRST_CLOCK_SAMPLE && type <= MODULE_POWER_SAMPLE);
    return is_shown ? real(device, type, last_seen_us, value_type, count, out)
                    : NVML_ERROR_NOT_SUPPORTED;
}
