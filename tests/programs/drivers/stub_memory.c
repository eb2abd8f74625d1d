/*
 * The third part of stub_driver.c: physical memory by handle, which it lets be mapped into arrays
 * and imported in any way.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint64_t last_handle = 0x5000;
static int shown_type, shown_location;

/* From now on imported memory is of this type, at this type of location. */
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
    memset(properties, 0, 32);
    properties[0] = shown_type;
    properties[2] = shown_location;
    return 0;
}

int
cuMemRelease(uint64_t handle)
{
    (void)handle;
    return 0;
}

int
cuMemMapArrayAsync(void *maps, unsigned int count, void *stream)
{
    (void)maps, (void)count, (void)stream;
    return 0;
}
