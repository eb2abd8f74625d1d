/*
 * An NVML that, like the real one, calls its own exports by name, so that those calls come back
 * through a proxy; that says how often it was entered; that knows of four processes, 101 to 104, in
 * every list; and whose private table has $TABLE_SLOTS slots.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INSUFFICIENT_SIZE = 7, PROCESSES = 4, FIRST_PID = 101 };

struct memory {
    uint64_t total, free, used;
};

struct memory_v2 {
    uint32_t version;
    uint64_t total, reserved, free, used;
};

int inner_calls;
uint64_t inner_total;

int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *out);
int nvmlDeviceGetMemoryInfo(void *device, struct memory *out);
/* The device with handle N is number N - 1. */
int nvmlDeviceGetUUID(void *device, char *out, uint32_t size);

int
nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *out)
{
    (void)device;
    inner_calls++;
    *out = (struct memory_v2){out->version, 16ull << 30, 1 << 20, 8ull << 30, 7ull << 30};
    return 0;
}

int
nvmlDeviceGetMemoryInfo(void *device, struct memory *out)
{
    struct memory_v2 all = {.version = sizeof all | 2 << 24};
    int status = nvmlDeviceGetMemoryInfo_v2(device, &all);
    inner_total = all.total;
    *out = (struct memory){all.total, all.free, all.used + all.reserved};
    return status;
}

int
nvmlDeviceGetUUID(void *device, char *out, uint32_t size)
{
    snprintf(out, size, "GPU-11111111-2222-3333-4444-%012d", (int)((uintptr_t)device - 1));
    return 0;
}

int nvmlDeviceGetAccountingPids(void *device, uint32_t *count, uint32_t *pids);
int nvmlDeviceGetAccountingStats(void *device, uint32_t pid, uint8_t *stats);
int nvmlDeviceGetRunningProcessDetailList(void *device, uint32_t *list);

int
nvmlDeviceGetAccountingPids(void *device, uint32_t *count, uint32_t *pids)
{
    (void)device;
    uint32_t room = *count;
    *count = PROCESSES;
    for (uint32_t i = 0; i < PROCESSES && i < room; i++) {
        pids[i] = FIRST_PID + i;
    }
    return room < PROCESSES ? INSUFFICIENT_SIZE : SUCCESS;
}

int
nvmlDeviceGetAccountingStats(void *device, uint32_t pid, uint8_t *stats)
{
    (void)device;
    memset(stats, (int)pid, 56);
    return SUCCESS;
}

int nvmlInternalGetExportTable(const void **table, const uint8_t *id);

/* Slot 0 is the size in bytes, slot N holds N. */
int
nvmlInternalGetExportTable(const void **table, const uint8_t *id)
{
    static uintptr_t slots[4096];
    const char *count = getenv("TABLE_SLOTS");
    (void)id;
    for (uintptr_t i = 0; i < 4096; i++) {
        slots[i] = i;
    }
    slots[0] = (count != NULL ? (uintptr_t)atoi(count) : 0) * sizeof slots[0];
    *table = slots;
    return SUCCESS;
}

/* Third of the list's words: the number of entries. Here there is never room for them. */
int
nvmlDeviceGetRunningProcessDetailList(void *device, uint32_t *list)
{
    (void)device;
    list[2] = PROCESSES;
    return INSUFFICIENT_SIZE;
}
