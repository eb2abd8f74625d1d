/* Which GPUs there are, and their names in every numbering. */
#include "sim.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static struct nvml_device devices[CGPU_MACHINE_MAX_GPUS];

enum {
    T4_DEVICE_ID = 0x1EB810DE,
    T4_SUBSYSTEM_ID = 0x12A210DE,
};

struct nvml_device *
sim_device(uint32_t index)
{
    struct cgpu_machine *machine = sim_machine();
    if (machine == NULL || index >= cgpu_machine_gpu_count(machine)) {
        return NULL;
    }
    devices[index].index = index;
    return &devices[index];
}

/* The handle of the GPU, or why it has none: NONE if there is no such GPU. */
static enum nvml_return
give_handle(struct nvml_device *device, enum nvml_return none, struct nvml_device **out)
{
    int has_handle = 0;
    if (out == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *out = device;
    if (device == NULL) {
        return none;
    }
    int loss = cgpu_machine_loss(sim_machine(), device->index, &has_handle);
    return has_handle ? NVML_SUCCESS : (enum nvml_return)loss;
}

enum nvml_return
sim_enter_device(const char *call, struct nvml_device *device, const void *out,
                 const struct cgpu_machine_gpu **gpu)
{
    enum nvml_return result = sim_enter(call);
    if (result) {
        return result;
    }
    if (out == NULL || device < devices ||
        device >= devices + cgpu_machine_gpu_count(sim_machine())) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    int has_handle;
    *gpu = cgpu_machine_gpu(sim_machine(), device->index);
    return (enum nvml_return)cgpu_machine_loss(sim_machine(), device->index, &has_handle);
}

void
sim_format_uuid(const struct cgpu_machine_gpu *gpu, char out[SIM_NAME_SIZE])
{
    char *end = out + sprintf(out, "GPU");
    for (int i = 0; i < 16; i++) {
        int dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
        end += sprintf(end, dash ? "-%02x" : "%02x", gpu->uuid[i]);
    }
}

static void
format_bus_id(const struct cgpu_machine_gpu *gpu, int domain_digits, char *out, size_t size)
{
    snprintf(out, size, "%0*X:%02X:%02X.0", domain_digits, gpu->pci_domain, gpu->pci_bus,
             gpu->pci_device);
}

static void
format_serial(const struct cgpu_machine_gpu *gpu, char out[SIM_NAME_SIZE])
{
    snprintf(out, SIM_NAME_SIZE, "13234%08u", gpu->minor + 1);
}

NVML_DEFINE(nvmlDeviceGetCount_v2, uint32_t *out)
{
    enum nvml_return result = sim_enter(__func__);
    if (!result && out == NULL) {
        result = NVML_ERROR_INVALID_ARGUMENT;
    }
    if (!result) {
        *out = cgpu_machine_gpu_count(sim_machine());
    }
    return result;
}

NVML_DEFINE(nvmlDeviceGetCount, uint32_t *out)
{
    return nvmlDeviceGetCount_v2(out);
}

NVML_DEFINE(nvmlDeviceGetHandleByIndex_v2, uint32_t index, struct nvml_device **out)
{
    enum nvml_return result = sim_enter(__func__);
    if (result) {
        return result;
    }
    return give_handle(sim_device(index), NVML_ERROR_INVALID_ARGUMENT, out);
}

NVML_DEFINE(nvmlDeviceGetHandleByIndex, uint32_t index, struct nvml_device **out)
{
    return nvmlDeviceGetHandleByIndex_v2(index, out);
}

static void
short_bus_id(const struct cgpu_machine_gpu *gpu, char out[SIM_NAME_SIZE])
{
    format_bus_id(gpu, 4, out, SIM_NAME_SIZE);
}

static void
long_bus_id(const struct cgpu_machine_gpu *gpu, char out[SIM_NAME_SIZE])
{
    format_bus_id(gpu, 8, out, SIM_NAME_SIZE);
}

/* The GPU whose name, as FORMAT writes it, is NAME. */
static struct nvml_device *
find_device(const char *name, void (*format)(const struct cgpu_machine_gpu *, char[SIM_NAME_SIZE]))
{
    char text[SIM_NAME_SIZE];
    struct nvml_device *device;
    for (uint32_t i = 0; name != NULL && (device = sim_device(i)) != NULL; i++) {
        format(cgpu_machine_gpu(sim_machine(), i), text);
        if (strcasecmp(text, name) == 0) {
            return device;
        }
    }
    return NULL;
}

NVML_DEFINE(nvmlDeviceGetHandleByUUID, const char *uuid, struct nvml_device **out)
{
    enum nvml_return result = sim_enter(__func__);
    if (result) {
        return result;
    }
    return give_handle(find_device(uuid, sim_format_uuid), NVML_ERROR_NOT_FOUND, out);
}

NVML_DEFINE(nvmlDeviceGetHandleBySerial, const char *serial, struct nvml_device **out)
{
    enum nvml_return result = sim_enter(__func__);
    if (result) {
        return result;
    }
    return give_handle(find_device(serial, format_serial), NVML_ERROR_NOT_FOUND, out);
}

NVML_DEFINE(nvmlDeviceGetHandleByPciBusId_v2, const char *bus_id, struct nvml_device **out)
{
    enum nvml_return result = sim_enter(__func__);
    if (result) {
        return result;
    }
    struct nvml_device *device = find_device(bus_id, long_bus_id);
    if (device == NULL) {
        device = find_device(bus_id, short_bus_id);
    }
    return give_handle(device, NVML_ERROR_NOT_FOUND, out);
}

NVML_DEFINE(nvmlDeviceGetHandleByPciBusId, const char *bus_id, struct nvml_device **out)
{
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, out);
}

NVML_DEFINE(nvmlDeviceGetUUID, struct nvml_device *device, char *out, uint32_t size)
{
    const struct cgpu_machine_gpu *gpu;
    char text[SIM_NAME_SIZE];
    enum nvml_return result = sim_enter_device(__func__, device, out, &gpu);
    if (result) {
        return result;
    }
    sim_format_uuid(gpu, text);
    return sim_copy_text(out, size, text);
}

NVML_DEFINE(nvmlDeviceGetSerial, struct nvml_device *device, char *out, uint32_t size)
{
    const struct cgpu_machine_gpu *gpu;
    char text[SIM_NAME_SIZE];
    enum nvml_return result = sim_enter_device(__func__, device, out, &gpu);
    if (result) {
        return result;
    }
    format_serial(gpu, text);
    return sim_copy_text(out, size, text);
}

NVML_DEFINE(nvmlDeviceGetPciInfo_v3, struct nvml_device *device, struct nvml_pci_v3 *out)
{
    const struct cgpu_machine_gpu *gpu;
    enum nvml_return result = sim_enter_device(__func__, device, out, &gpu);
    if (result) {
        return result;
    }
    *out = (struct nvml_pci_v3){.domain = gpu->pci_domain,
                                .bus = gpu->pci_bus,
                                .device = gpu->pci_device,
                                .device_id = T4_DEVICE_ID,
                                .subsystem_id = T4_SUBSYSTEM_ID};
    format_bus_id(gpu, 4, out->bus_id_legacy, sizeof out->bus_id_legacy);
    format_bus_id(gpu, 8, out->bus_id, sizeof out->bus_id);
    return NVML_SUCCESS;
}

NVML_DEFINE(nvmlDeviceGetPciInfo_v2, struct nvml_device *device, struct nvml_pci_v2 *out)
{
    const struct cgpu_machine_gpu *gpu;
    enum nvml_return result = sim_enter_device(__func__, device, out, &gpu);
    if (result) {
        return result;
    }
    *out = (struct nvml_pci_v2){.domain = gpu->pci_domain,
                                .bus = gpu->pci_bus,
                                .device = gpu->pci_device,
                                .device_id = T4_DEVICE_ID,
                                .subsystem_id = T4_SUBSYSTEM_ID};
    format_bus_id(gpu, 4, out->bus_id, sizeof out->bus_id);
    return NVML_SUCCESS;
}

NVML_DEFINE(nvmlDeviceGetPciInfo, struct nvml_device *device, struct nvml_pci_v2 *out)
{
    return nvmlDeviceGetPciInfo_v2(device, out);
}

NVML_DEFINE(nvmlDeviceGetPciInfoExt, struct nvml_device *device, struct nvml_pci_ext *out)
{
    const struct cgpu_machine_gpu *gpu;
    enum nvml_return result = sim_enter_device(__func__, device, out, &gpu);
    if (result) {
        return result;
    }
    *out = (struct nvml_pci_ext){.version = out->version,
                                 .domain = gpu->pci_domain,
                                 .bus = gpu->pci_bus,
                                 .device = gpu->pci_device,
                                 .device_id = T4_DEVICE_ID,
                                 .subsystem_id = T4_SUBSYSTEM_ID,
                                 .base_class = 3,
                                 .sub_class = 2};
    format_bus_id(gpu, 8, out->bus_id, sizeof out->bus_id);
    return NVML_SUCCESS;
}
