/*
 * The third part of stub_driver.c: physical memory by handle, which it lets be mapped into arrays
 * and imported in any way; and linear memory of other processes, of which it says nothing.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

static uint64_t last_handle = 0x5000;
static int shown_type, shown_location;
static int waits, released; /* whether it waits for a release; how many there were */

/*
 * From now on imported memory is of this type, at this type of location; type -1: nobody says what
 * it is, as with multicast objects.
 */
void
stub_show(int type, int location)
{
    shown_type = type;
    shown_location = location;
}

int
cuMemCreate(uint64_t *handle, size_t bytes, const void *properties, uint64_t flags)
{
    (void)bytes, (void)properties, (void)flags;
    *handle = ++last_handle;
    return 0;
}

int
cuMemImportFromShareableHandle(uint64_t *handle, void *shared, int type)
{
    (void)shared, (void)type;
    *handle = ++last_handle;
    return 0;
}

int
cuMemGetAllocationPropertiesFromHandle(int *properties, uint64_t handle)
{
    (void)handle;
    if (shown_type < 0) {
        return 1;
    }
    memset(properties, 0, 32);
    properties[0] = shown_type;
    properties[2] = shown_location;
    return 0;
}

int
cuMemRelease(uint64_t handle)
{
    (void)handle;
    __atomic_add_fetch(&released, 1, __ATOMIC_SEQ_CST);
    return 0;
}

/* Whether cuIpcOpenMemHandle or cuIpcCloseMemHandle waits for a cuMemRelease of another thread. */
int
stub_waits(void)
{
    return __atomic_load_n(&waits, __ATOMIC_SEQ_CST);
}

static int
wait_for_release(void)
{
    int before = __atomic_load_n(&released, __ATOMIC_SEQ_CST);
    int tries = 20 * 1000;
    __atomic_store_n(&waits, 1, __ATOMIC_SEQ_CST);
    while (tries > 0 && __atomic_load_n(&released, __ATOMIC_SEQ_CST) == before) {
        usleep(1000);
        tries--;
    }
    __atomic_store_n(&waits, 0, __ATOMIC_SEQ_CST);
    return tries > 0 ? 0 : 999;
}

struct stub_ipc_handle {
    char bytes[64];
};

int
cuIpcOpenMemHandle_v2(uint64_t *address, struct stub_ipc_handle handle, unsigned int flags)
{
    (void)handle, (void)flags;
    *address = 0x7000000;
    return wait_for_release();
}

int
cuIpcCloseMemHandle(uint64_t address)
{
    (void)address;
    return wait_for_release();
}

/* Memory of other processes' pools: 4 MiB of this type, which it names the first GPU for. */
enum { POOLED = 0x7800000, MEMORY_TYPE = 2, DEVICE_ORDINAL = 9 };
static int pooled_type;

void
stub_show_pooled(int memory_type)
{
    pooled_type = memory_type;
}

int
cuMemPoolImportPointer(uint64_t *address, void *pool, void *shared)
{
    (void)pool, (void)shared;
    *address = POOLED;
    return 0;
}

int
cuPointerGetAttribute(int *value, int attribute, uint64_t address)
{
    if (address != POOLED || (attribute != MEMORY_TYPE && attribute != DEVICE_ORDINAL)) {
        return 1;
    }
    *value = attribute == MEMORY_TYPE ? pooled_type : 0;
    return 0;
}

int
cuMemGetAddressRange_v2(uint64_t *base, size_t *bytes, uint64_t address)
{
    if (address != POOLED) {
        return 500;
    }
    if (base != NULL) {
        *base = POOLED;
    }
    *bytes = 4 << 20;
    return 0;
}

int
cuMemMapArrayAsync(void *maps, unsigned int count, void *stream)
{
    (void)maps, (void)count, (void)stream;
    return 0;
}

/* The proxy answers these itself, but hides what its driver lacks. */
int
cuMemGetInfo_v2(size_t *available, size_t *total)
{
    (void)available, (void)total;
    return 999;
}

int
cuMemAllocManaged(uint64_t *address, size_t bytes, unsigned int flags)
{
    (void)address, (void)bytes, (void)flags;
    return 999;
}

int
cuMemSetMemPool(void *location, int kind, void *pool)
{
    (void)location, (void)kind, (void)pool;
    return 999;
}

int
cuMemGetInfo(unsigned int *available, unsigned int *total)
{
    (void)available, (void)total;
    return 999;
}

int
cuMemPrefetchAsync(uint64_t address, size_t bytes, int device, void *stream)
{
    (void)address, (void)bytes, (void)device, (void)stream;
    return 999;
}

int
cuCheckpointProcessLock(int process, void *arguments)
{
    (void)process, (void)arguments;
    return 999;
}
