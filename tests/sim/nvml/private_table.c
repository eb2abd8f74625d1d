/*
 * The private table that nvidia-smi takes. Every slot that the simulation does not serve answers
 * "not supported", which nvidia-smi takes like a GPU that lacks the feature.
 */
#include "sim.h"

#include <string.h>

static enum nvml_return
unsupported(void)
{
    return NVML_ERROR_NOT_SUPPORTED;
}

/* Of two GPUs, named by pointers to something unknown: 0 is one PCIe bridge, 4 different sockets.
 */
static enum nvml_return
topology_level(const void *one, const void *other, uint32_t *level)
{
    (void)one;
    (void)other;
    *level = 2; /* a host bridge, as nvmlDeviceGetTopologyCommonAncestor says */
    return NVML_SUCCESS;
}

static enum nvml_return
monitoring_supported(struct nvml_device *device, uint32_t *out)
{
    (void)device;
    *out = UINT32_MAX;
    return NVML_SUCCESS;
}

static enum nvml_return
compute_processes(struct nvml_device *device, uint32_t *count, struct nvml_named_process *out)
{
    return sim_list_processes(__func__, device, count, out, sizeof *out);
}

static enum nvml_return
no_processes(struct nvml_device *device, uint32_t *count, struct nvml_named_process *out)
{
    (void)device;
    (void)out;
    *count = 0;
    return NVML_SUCCESS;
}

/* Exported so that tests can make it as short as that of an old driver. */
SIM_EXPORT extern const void *const cgpu_sim_private_table[NVML_PRIVATE_SLOTS_550];
const void *const cgpu_sim_private_table[NVML_PRIVATE_SLOTS_550] = {
    [NVML_SLOT_SIZE] = (const void *)sizeof cgpu_sim_private_table,
    [1 ... NVML_SLOT_TOPOLOGY - 1] = unsupported,
    [NVML_SLOT_TOPOLOGY] = topology_level,
    [NVML_SLOT_TOPOLOGY + 1 ... NVML_SLOT_MONITORING - 1] = unsupported,
    [NVML_SLOT_MONITORING] = monitoring_supported,
    [NVML_SLOT_MONITORING + 1 ... NVML_SLOT_COMPUTE - 1] = unsupported,
    [NVML_SLOT_COMPUTE] = compute_processes,
    [NVML_SLOT_MPS] = no_processes,
    [NVML_SLOT_GRAPHICS] = no_processes,
    [NVML_SLOT_GRAPHICS + 1 ... NVML_PRIVATE_SLOTS_550 - 1] = unsupported,
};

NVML_DEFINE(nvmlInternalGetExportTable, const void **table, const uint8_t *id)
{
    static const uint8_t known_id[16] = NVML_PRIVATE_TABLE_ID;
    if (table == NULL || id == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (memcmp(id, known_id, sizeof known_id) != 0) {
        return NVML_ERROR_NOT_FOUND;
    }
    *table = cgpu_sim_private_table;
    return NVML_SUCCESS;
}
