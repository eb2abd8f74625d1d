/*
 * The one private table that nvidia-smi 535 takes. What it asks of it was found by giving it a table
 * whose slots report their calls. Slot 0 is the table's size; every slot that the simulation does not
 * serve answers "not supported", which nvidia-smi takes like a GPU that lacks the feature.
 */
#include "sim.h"

#include <stddef.h>
#include <string.h>

enum {
    SLOTS = 512
};

static const uint8_t table_id[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
                                     0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};

static enum nvml_return
unsupported(void)
{
    return NVML_ERROR_NOT_SUPPORTED;
}

NVML_DEFINE(nvmlInternalGetExportTable, const void **table, const uint8_t *id)
{
    static void *slots[SLOTS];
    if (table == NULL || id == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (memcmp(id, table_id, sizeof table_id) != 0) {
        return NVML_ERROR_NOT_FOUND;
    }
    slots[0] = (void *)sizeof slots;
    for (int i = 1; i < SLOTS; i++) {
        slots[i] = (void *)unsupported;
    }
    *table = slots;
    return NVML_SUCCESS;
}
