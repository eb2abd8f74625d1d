/*
 * Links between GPUs. Those of one island are at one PCIe switch, and have NVLinks: from each GPU
 * to each other, or all to a switch of the island. GPUs of two islands meet anywhere in the system.
 */
#include "sim.h"

enum {
    LEVEL_SINGLE = 10,
    LEVEL_HOST_BRIDGE = 30,
    LEVEL_SYSTEM = 50,
    NVLINKS = 18,
    SWITCH_BUS = 0xc0,
};

NVML_DEFINE(nvmlDeviceGetTopologyCommonAncestor, struct nvml_device *device,
            struct nvml_device *peer, uint32_t *out)
{
    const struct cgpu_machine_gpu *gpu;
    enum nvml_return result = sim_enter_device(__func__, device, out, &gpu);
    if (result) {
        return result;
    }
    const struct cgpu_machine_gpu *other = cgpu_machine_gpu(sim_machine(), peer->index);
    *out = gpu->island != other->island ? LEVEL_SYSTEM
           : gpu->island                ? LEVEL_SINGLE
                                        : LEVEL_HOST_BRIDGE;
    return NVML_SUCCESS;
}

/* The GPU at the other end of a LINK of DEVICE, or a negative number: none, or a switch. */
static int
remote_gpu(const struct nvml_device *device, const struct cgpu_machine_gpu *gpu, uint32_t link)
{
    uint32_t ends = 0, count = cgpu_machine_gpu_count(sim_machine());
    for (uint32_t i = 0; !gpu->switched && gpu->nvlinks && i < count; i++) {
        if (i != device->index && cgpu_machine_gpu(sim_machine(), i)->island == gpu->island) {
            ends += gpu->nvlinks;
            if (link < ends) {
                return (int)i;
            }
        }
    }
    return -1;
}

NVML_DEFINE(nvmlDeviceGetNvLinkState, struct nvml_device *device, uint32_t link, uint32_t *active)
{
    const struct cgpu_machine_gpu *gpu;
    enum nvml_return result = sim_enter_device(__func__, device, active, &gpu);
    if (result || !gpu->nvlinks) {
        return result ? result : NVML_ERROR_NOT_SUPPORTED;
    }
    if (link >= NVLINKS) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *active = gpu->switched ? link < gpu->nvlinks : remote_gpu(device, gpu, link) >= 0;
    return NVML_SUCCESS;
}

NVML_DEFINE(nvmlDeviceGetNvLinkRemotePciInfo_v2, struct nvml_device *device, uint32_t link,
            struct nvml_pci_v3 *out)
{
    uint32_t active;
    enum nvml_return result = nvmlDeviceGetNvLinkState(device, link, &active);
    if (result || !active || out == NULL) {
        return result ? result : NVML_ERROR_INVALID_ARGUMENT;
    }
    const struct cgpu_machine_gpu *gpu = cgpu_machine_gpu(sim_machine(), device->index);
    int remote = remote_gpu(device, gpu, link);
    if (remote >= 0) {
        return nvmlDeviceGetPciInfo_v3(sim_device((uint32_t)remote), out);
    }
    *out = (struct nvml_pci_v3){.bus = SWITCH_BUS + gpu->island};
    return NVML_SUCCESS;
}
