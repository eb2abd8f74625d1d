/*
 * An NVML that, like the real one, calls its own exports by name, so that those calls come back through a proxy; and
 * that says how often it was entered.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

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
    (void)device;
    snprintf(out, size, "GPU-11111111-2222-3333-4444-%012d", 0);
    return 0;
}
