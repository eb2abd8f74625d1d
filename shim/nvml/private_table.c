/*
 * nvidia-smi takes its process lists from a private table. It gets a copy of the driver's table
 * with the container's lists. From driver to driver, the table grows at its end, so the slots keep
 * their numbers. Up to driver 470 the table ends before them, and nvidia-smi uses the public lists.
 */
#include <string.h>

#include "shim.h"

enum {
    MOST_SLOTS = 1024 /* 251 in driver 550 */
};

static const uint8_t table_id[16] = NVML_PRIVATE_TABLE_ID;
static void *table_copy[MOST_SLOTS];
static const void *table_without_lists; /* the driver's own */

/* Asks the public function, because it is not known how the private ones handle a NULL. */
static enum nvml_return
probe(struct nvml_device *device, const uint32_t *count)
{
    return cgpu_nvml_list_status(cgpu_nvml_real.nvmlDeviceGetComputeRunningProcesses_v3, device,
                                 count);
}

static enum nvml_return
compute_list(struct nvml_device *device, uint32_t *count, struct nvml_named_process *out)
{
    return cgpu_nvml_list(probe(device, count), device, count, out, sizeof *out);
}

static enum nvml_return
empty_list(struct nvml_device *device, uint32_t *count, struct nvml_named_process *out)
{
    (void)out;
    return cgpu_nvml_list_none(probe(device, count), count);
}

void
cgpu_nvml_export_table_setup(void)
{
    const void *table = NULL;
    uintptr_t size;
    if (cgpu_nvml_real.nvmlInternalGetExportTable(&table, table_id) != NVML_SUCCESS) {
        return;
    }
    memcpy(&size, table, sizeof size);
    if (size != 0 && size <= NVML_SLOT_COMPUTE * sizeof(void *)) {
        table_without_lists = table;
    }
    if (size <= NVML_SLOT_GRAPHICS * sizeof(void *) || size > sizeof table_copy) {
        return;
    }
    memcpy(table_copy, table, size);
    table_copy[NVML_SLOT_COMPUTE] = (void *)compute_list;
    table_copy[NVML_SLOT_MPS] = (void *)empty_list;
    table_copy[NVML_SLOT_GRAPHICS] = (void *)empty_list;
}

/*
 * Return the table with the container's lists. If they were not found in the table, refuse: it
 * would show the processes of all containers.
 */
enum nvml_return
cgpu_nvml_export_table(enum nvml_return (*real)(const void **, const uint8_t *), const void **table,
                       const uint8_t *id)
{
    if (id == NULL || memcmp(id, table_id, sizeof table_id) != 0) {
        return real(table, id);
    }
    if (table == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    const void *use = table_copy[NVML_SLOT_COMPUTE] != NULL ? table_copy : table_without_lists;
    if (use == NULL) {
        return NVML_ERROR_NOT_FOUND;
    }
    *table = use;
    return NVML_SUCCESS;
}
