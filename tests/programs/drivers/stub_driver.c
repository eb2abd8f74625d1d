/*
 * A driver of two GPUs that does almost nothing: it hands out addresses and counts what it was
 * asked for.
 *
 * For what the simulated driver cannot show: faults on demand, entry points newer than this
 * release, and ones that are missing. STUB_FAIL=<name> makes that entry point fail with
 * CUDA_ERROR_UNKNOWN.
 */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_FOUND = 500, UNKNOWN = 999, GPUS = 2 };

struct context {
    int device;
};

static __thread struct context *current;
static struct context primary[GPUS] = {{0}, {1}};
static int primary_count[GPUS];
static int primary_active[GPUS];
static uint64_t next_address[] = {0x100000000, 0x10100000000}; /* of each GPU */
static int live;                                               /* allocations and arrays */

static int
fails(const char *name)
{
    const char *wanted = getenv("STUB_FAIL");
    return wanted != NULL && strcmp(wanted, name) == 0;
}

enum { BLOCK = 2 << 20, SMALL = 1 << 20 };

/* What is small comes wherever the last one ended, what is not at a block of 2 MiB. */
static uint64_t
take(uint64_t bytes)
{
    uint64_t unit = bytes > SMALL ? BLOCK : 4096;
    uint64_t *next = &next_address[current != NULL ? current->device : 0];
    uint64_t old = __atomic_load_n(next, __ATOMIC_RELAXED);
    uint64_t start;

    __atomic_add_fetch(&live, 1, __ATOMIC_RELAXED);
    do {
        start = (old + unit - 1) / unit * unit;
    } while (!__atomic_compare_exchange_n(next, &old, start + (bytes + unit - 1) / unit * unit, 0,
                                          __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return start;
}

int
stub_live(void)
{
    return live;
}

/* Like the driver with CUDA_INJECTION64_PATH and callbacks: a tool runs inside cuInit and
 * cuCtxCreate_v3. */
static void (*injected)(void);

void
stub_inject(void (*tool)(void))
{
    injected = tool;
}

int
cuInit(unsigned int flags)
{
    if (injected != NULL) {
        injected();
    }
    return fails("cuInit") ? UNKNOWN : (int)flags;
}

int
cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return ordinal < GPUS ? SUCCESS : 101;
}

int
cuDeviceGetUuid(uint8_t *uuid, int device)
{
    memset(uuid, device + 1, 16);
    return SUCCESS;
}

int
cuDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)device;
    *value = attribute;
    return SUCCESS;
}

/* Knows every limit. */
int
cuCtxGetLimit(size_t *value, int limit)
{
    (void)limit;
    *value = 0;
    return SUCCESS;
}

int
cuCtxSetLimit(int limit, size_t value)
{
    (void)limit;
    (void)value;
    return SUCCESS;
}

int
cuDeviceTotalMem_v2(size_t *total, int device)
{
    *total = (size_t)16 << 30;
    return device < GPUS ? SUCCESS : 101;
}

int
cuDeviceTotalMem(unsigned int *total, int device)
{
    *total = UINT32_MAX;
    return device < GPUS ? SUCCESS : 101;
}

int
cuCtxGetCurrent(struct context **context)
{
    *context = current;
    return SUCCESS;
}

int
cuCtxSetCurrent(struct context *context)
{
    current = context;
    return SUCCESS;
}

int
cuCtxGetDevice(int *device)
{
    *device = current->device;
    return SUCCESS;
}

static int
create(struct context **context, int device, const char *name)
{
    if (fails(name)) {
        return UNKNOWN;
    }
    *context = current = malloc(sizeof(**context));
    current->device = device;
    return SUCCESS;
}

int
cuCtxCreate_v2(struct context **context, unsigned int flags, int device)
{
    (void)flags;
    return create(context, device, "cuCtxCreate_v2");
}

int
cuCtxCreate_v3(struct context **context, void *affinity, int count, unsigned int flags, int device)
{
    (void)affinity, (void)count, (void)flags;
    if (injected != NULL) {
        injected();
    }
    return create(context, device, "cuCtxCreate_v3");
}

int
cuCtxCreate_v4(struct context **context, void *parameters, unsigned int flags, int device)
{
    (void)parameters, (void)flags;
    return create(context, device, "cuCtxCreate_v4");
}

int
cuCtxDestroy_v2(struct context *context)
{
    if (fails("cuCtxDestroy_v2")) {
        return UNKNOWN;
    }
    current = NULL;
    free(context);
    return SUCCESS;
}

int
cuDevicePrimaryCtxRetain(struct context **context, int device)
{
    if (fails("cuDevicePrimaryCtxRetain")) {
        return UNKNOWN;
    }
    primary_count[device]++;
    primary_active[device] = 1;
    *context = &primary[device];
    return SUCCESS;
}

int
cuDevicePrimaryCtxRelease_v2(int device)
{
    primary_active[device] = --primary_count[device] > 0;
    return SUCCESS;
}

int
cuDevicePrimaryCtxReset_v2(int device)
{
    primary_active[device] = fails("inactive after reset");
    return SUCCESS;
}

int
cuDevicePrimaryCtxGetState(int device, unsigned int *flags, int *active)
{
    *flags = 0;
    *active = primary_active[device];
    return SUCCESS;
}

/* A green context retains the primary context; what stands for it has a handle of its own. */
int
cuGreenCtxCreate(struct context **green, void *resources, int device, unsigned int flags)
{
    (void)resources, (void)flags;
    struct context *context;
    *green = calloc(2, sizeof(**green));
    (*green)[0].device = (*green)[1].device = device;
    return cuDevicePrimaryCtxRetain(&context, device);
}

int
cuGreenCtxDestroy(struct context *green)
{
    return cuDevicePrimaryCtxRelease_v2(green->device);
}

int
cuCtxFromGreenCtx(struct context **context, struct context *green)
{
    *context = green + 1;
    return SUCCESS;
}

int
cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
    if (fails("cuMemAlloc_v2") || bytes == 0) {
        return bytes == 0 ? INVALID_VALUE : UNKNOWN;
    }
    *address = take(bytes);
    return SUCCESS;
}

int
cuMemAlloc(unsigned int *address, unsigned int bytes)
{
    uint64_t wide = take(bytes);
    *address = (unsigned int)wide;
    return SUCCESS;
}

int
cuMemAllocPitch_v2(uint64_t *address, size_t *pitch, size_t width, size_t height,
                   unsigned int element)
{
    (void)element;
    *pitch = (width + 511) & ~511ull;
    *address = take(*pitch * height);
    return SUCCESS;
}

int
cuMemFree_v2(uint64_t address)
{
    if (fails("cuMemFree_v2") || address < 0x1000) {
        return address < 0x1000 ? INVALID_VALUE : UNKNOWN;
    }
    __atomic_sub_fetch(&live, 1, __ATOMIC_RELAXED);
    return SUCCESS;
}

int
cuMemFree(unsigned int address)
{
    (void)address;
    __atomic_sub_fetch(&live, 1, __ATOMIC_RELAXED);
    return SUCCESS;
}

/* An array takes memory that no deferred twin tells of: there is no such notion in this driver. */
int
cuArray3DCreate_v2(void **array, const void *descriptor)
{
    const unsigned int flags = ((const unsigned int *)descriptor)[8];
    if ((flags & 0x80) != 0 || fails("cuArray3DCreate_v2")) {
        return UNKNOWN;
    }
    *array = (void *)(uintptr_t)take(1);
    return SUCCESS;
}

int
cuArrayDestroy(void *array)
{
    (void)array;
    __atomic_sub_fetch(&live, 1, __ATOMIC_RELAXED);
    return SUCCESS;
}

/* Entry points that a newer driver has added. */
int
cuMemAlloc_v9(uint64_t *address, size_t bytes)
{
    return cuMemAlloc_v2(address, bytes);
}

int
cuMemTakeShiny(void)
{
    return SUCCESS;
}

int
cuSubgridLaunch(void)
{
    return SUCCESS;
}

int
cuDeviceGetShine(void)
{
    return SUCCESS;
}

int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags,
                        int *status);

static const struct {
    const char *base;
    int since;
    void *address;
} answers[] = {
    {"cuGetProcAddress", 12000, (void *)cuGetProcAddress_v2},
    {"cuInit", 2000, (void *)cuInit},
    {"cuMemAlloc", 3020, (void *)cuMemAlloc_v2},
    {"cuMemAlloc", 14000, (void *)cuMemAlloc_v9},
    {"cuMemTakeShiny", 14000, (void *)cuMemTakeShiny},
    {"cuSubgridLaunch", 14000, (void *)cuSubgridLaunch},
    {"cuDeviceGetShine", 14000, (void *)cuDeviceGetShine},
    {"cuCtxGetCurrent", 4000, (void *)cuCtxGetCurrent},
};

int
cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status)
{
    (void)flags;
    *function = NULL;
    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
        if (strcmp(answers[i].base, symbol) == 0 && version >= answers[i].since) {
            *function = answers[i].address;
        }
    }
    if (status != NULL) {
        *status = *function != NULL ? 0 : 1;
    }
    return *function != NULL ? SUCCESS : NOT_FOUND;
}

int
cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}
