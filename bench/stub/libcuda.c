/*
 * A driver that does nothing, as fast as can be: what a proxy adds is measured against it.
 * Allocation hands out addresses from a per-thread stack so that pointers are reused as in a
 * driver.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { STACK = 16384, CHUNK = 2 << 20, SMALL = 1 << 20, PIECE = 1 << 14 };

/* Addresses of one kind: whole chunks, or pieces that share them. */
struct stack {
    uint64_t step;
    int count;
    uint64_t free[STACK];
};

static uint64_t next_chunk = 0x700000000000, next_piece = 0x600000000000;
static __thread struct stack chunks = {.step = 2 * CHUNK}, pieces = {.step = PIECE};
static const size_t total = (size_t)1 << 46;

EXPORT int cuInit(unsigned int flags);
EXPORT int cuDriverGetVersion(int *version);
EXPORT int cuDeviceGetCount(int *count);
EXPORT int cuDeviceGet(int *device, int ordinal);
EXPORT int cuDeviceGetUuid(unsigned char *uuid, int device);
EXPORT int cuDeviceGetUuid_v2(unsigned char *uuid, int device);
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device);
EXPORT int cuCtxCreate_v2(void **ctx, unsigned int flags, int device);
EXPORT int cuCtxGetCurrent(void **ctx);
EXPORT int cuCtxGetDevice(int *device);
EXPORT int cuMemAlloc_v2(uint64_t *address, size_t bytes);
EXPORT int cuMemFree_v2(uint64_t address);
EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
EXPORT int cuMemGetAllocationGranularity(size_t *granularity, const void *prop, int option);
EXPORT int cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned int flags);
EXPORT int cuMemHostGetDevicePointer_v2(uint64_t *address, void *pointer, unsigned int flags);
EXPORT int cuStreamIsCapturing(void *stream, int *status);
EXPORT int cuStreamWriteValue32_v2(void *stream, uint64_t address, uint32_t value,
                                   unsigned int flags);
EXPORT int cuThreadExchangeStreamCaptureMode(int *mode);
EXPORT int cuLaunchKernel(void *function, unsigned int gx, unsigned int gy, unsigned int gz,
                          unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
                          void *stream, void **params, void **extra);

int
cuInit(unsigned int flags)
{
    return flags == 0 ? 0 : 1;
}

int
cuDriverGetVersion(int *version)
{
    *version = 12040;
    return 0;
}

int
cuDeviceGetCount(int *count)
{
    *count = 1;
    return 0;
}

int
cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return ordinal == 0 ? 0 : 101;
}

int
cuDeviceGetUuid(unsigned char *uuid, int device)
{
    memset(uuid, 0x11, 16);
    return device == 0 ? 0 : 101;
}

int
cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
    return cuDeviceGetUuid(uuid, device);
}

int
cuDeviceGetAttribute(int *value, int attribute, int device)
{
    *value = 1;
    return attribute > 0 && device == 0 ? 0 : 1;
}

int
cuCtxCreate_v2(void **ctx, unsigned int flags, int device)
{
    (void)flags;
    (void)device;
    *ctx = (void *)0x1000;
    return 0;
}

int
cuCtxGetCurrent(void **ctx)
{
    *ctx = (void *)0x1000;
    return 0;
}

int
cuCtxGetDevice(int *device)
{
    *device = 0;
    return 0;
}

int
cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
    if (bytes == 0) {
        return 1;
    }
    struct stack *stack = bytes > SMALL ? &chunks : &pieces;
    uint64_t *next = bytes > SMALL ? &next_chunk : &next_piece;
    *address = stack->count > 0 ? stack->free[--stack->count]
                                : __atomic_fetch_add(next, stack->step, __ATOMIC_RELAXED);
    return 0;
}

int
cuMemFree_v2(uint64_t address)
{
    struct stack *stack = address >= 0x700000000000 ? &chunks : &pieces;
    if (stack->count < STACK) {
        stack->free[stack->count++] = address;
    }
    return 0;
}

int
cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    *free_bytes = total;
    *total_bytes = total;
    return 0;
}

int
cuMemGetAllocationGranularity(size_t *granularity, const void *prop, int option)
{
    (void)prop;
    (void)option;
    *granularity = CHUNK;
    return 0;
}

int
cuLaunchKernel(void *function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
               unsigned int by, unsigned int bz, unsigned int shared, void *stream, void **params,
               void **extra)
{
    (void)function, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz;
    (void)shared, (void)stream, (void)params, (void)extra;
    return 0;
}

int
cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned int flags)
{
    (void)bytes, (void)flags;
    return pointer != NULL ? 0 : 1;
}

int
cuMemHostGetDevicePointer_v2(uint64_t *address, void *pointer, unsigned int flags)
{
    (void)flags;
    *address = (uint64_t)(uintptr_t)pointer;
    return 0;
}

int
cuStreamIsCapturing(void *stream, int *status)
{
    (void)stream;
    *status = 0;
    return 0;
}

/* Kernels end as they are launched, so a marker is passed as it is placed. */
int
cuStreamWriteValue32_v2(void *stream, uint64_t address, uint32_t value, unsigned int flags)
{
    (void)stream, (void)flags;
    __atomic_store_n((uint32_t *)(uintptr_t)address, value, __ATOMIC_RELEASE);
    return 0;
}

int
cuThreadExchangeStreamCaptureMode(int *mode)
{
    *mode = 0;
    return 0;
}
