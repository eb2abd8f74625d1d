/* Address reservations, and physical memory mapped into them. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>

#include "vmm.h"

enum { ACCESS_NONE = 0, ACCESS_READ = 1, ACCESS_READ_WRITE = 3 };

struct reservation {
    struct reservation *next;
    uint64_t base, bytes;
};

struct access { /* layout of CUmemAccessDesc */
    uint32_t location_type, location_id, flags;
};

static struct reservation *reservations;

static struct reservation *
reservation_of(uint64_t address, uint64_t bytes)
{
    struct reservation *i = reservations;
    while (i != NULL && (address < i->base || address + bytes > i->base + i->bytes)) {
        i = i->next;
    }
    return i;
}

static int
is_granular(uint64_t address, uint64_t bytes)
{
    return bytes != 0 && address % SIM_GRANULE == 0 && bytes % SIM_GRANULE == 0;
}

SIM_API(cuMemAddressReserve,
        (uint64_t *out, size_t bytes, size_t alignment, uint64_t hint, unsigned long long flags),
        (out, bytes, alignment, hint, flags))
{
    (void)hint; /* a wish, which the driver need not grant either */
    if (out == NULL || flags != 0 || !is_granular(0, bytes) || (alignment & (alignment - 1)) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    alignment = alignment < SIM_GRANULE ? SIM_GRANULE : alignment;
    uint64_t base = sim_pages_map(bytes, alignment, 0);
    if (base == 0) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    mprotect((void *)(uintptr_t)base, bytes, PROT_NONE);
    struct reservation *reservation = malloc(sizeof *reservation);
    *reservation = (struct reservation){reservations, base, bytes};
    reservations = reservation;
    *out = base;
    return CUDA_SUCCESS;
}

/* Any mapping inside the range, or NULL. */
static struct sim_region *
mapping_in(uint64_t address, uint64_t bytes)
{
    for (uint64_t at = address; at < address + bytes; at += SIM_GRANULE) {
        struct sim_region *region = sim_region_find(at);
        if (region != NULL) {
            return region;
        }
    }
    return NULL;
}

SIM_API(cuMemAddressFree, (uint64_t address, size_t bytes), (address, bytes))
{
    struct reservation **at = &reservations;
    while (*at != NULL && ((*at)->base != address || (*at)->bytes != bytes)) {
        at = &(*at)->next;
    }
    if (*at == NULL || mapping_in(address, bytes) != NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct reservation *reservation = *at;
    *at = reservation->next;
    sim_pages_unmap(address, bytes);
    free(reservation);
    return CUDA_SUCCESS;
}

static int
map_pages(struct sim_physical *physical, uint64_t address, uint64_t offset, uint64_t bytes)
{
    void *at = (void *)(uintptr_t)address, *mapped;
    if (physical->shared != 0) {
        mapped = cgpu_machine_object_map(sim_machine(), physical->shared - 1, at, offset, bytes);
    } else {
        mapped = mmap(at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, physical->fd, (off_t)offset);
    }
    if (mapped == MAP_FAILED) {
        return CUDA_ERROR_MAP_FAILED;
    }
    mprotect(at, bytes, PROT_NONE); /* until cuMemSetAccess */
    return CUDA_SUCCESS;
}

SIM_API(cuMemMap,
        (uint64_t address, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags),
        (address, bytes, offset, handle, flags))
{
    struct sim_physical *physical = sim_object_find(SIM_PHYSICAL, (void *)(uintptr_t)handle);
    if (physical == NULL || flags != 0 || !is_granular(address, bytes) ||
        offset % SIM_GRANULE != 0 || offset + bytes > physical->bytes ||
        reservation_of(address, bytes) == NULL || mapping_in(address, bytes) != NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int result = map_pages(physical, address, offset, bytes);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct sim_region *region = sim_region_add(address, bytes, SIM_MAPPED);
    region->device = physical->device != NULL ? physical->device : sim_device(0);
    region->physical = physical;
    region->physical_offset = offset;
    physical->mappings++;
    return CUDA_SUCCESS;
}

/* Do whole mappings cover the range exactly? */
static int
is_covered(uint64_t address, uint64_t bytes)
{
    uint64_t at = address;
    while (at < address + bytes) {
        struct sim_region *region = sim_region_find(at);
        if (region == NULL || region->kind != SIM_MAPPED || region->base != at) {
            return 0;
        }
        at += region->bytes;
    }
    return at == address + bytes;
}

SIM_API(cuMemUnmap, (uint64_t address, size_t bytes), (address, bytes))
{
    if (!is_granular(address, bytes) || !is_covered(address, bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (uint64_t at = address; at < address + bytes;) {
        struct sim_region *region = sim_region_find(at);
        struct sim_physical *physical = region->physical;
        mmap((void *)(uintptr_t)at, region->bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
        at += region->bytes;
        sim_region_remove(region);
        physical->mappings--;
        sim_physical_release(physical);
    }
    return CUDA_SUCCESS;
}

static int
protection(uint32_t access)
{
    if (access == ACCESS_READ_WRITE) {
        return PROT_READ | PROT_WRITE;
    }
    return access == ACCESS_READ ? PROT_READ : PROT_NONE;
}

SIM_API(cuMemSetAccess, (uint64_t address, size_t bytes, const struct access *list, size_t count),
        (address, bytes, list, count))
{
    if (list == NULL || count == 0 || !is_granular(address, bytes) || !is_covered(address, bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; i++) {
        if (list[i].flags == 2 || list[i].flags > ACCESS_READ_WRITE) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (list[i].location_type == SIM_LOCATION_DEVICE &&
            sim_device((int)list[i].location_id) == NULL) {
            return CUDA_ERROR_INVALID_DEVICE;
        }
    }
    for (uint64_t at = address; at < address + bytes;) {
        struct sim_region *region = sim_region_find(at);
        region->access = list[0].flags;
        mprotect((void *)(uintptr_t)at, region->bytes, protection(region->access));
        at += region->bytes;
    }
    return CUDA_SUCCESS;
}

SIM_API(cuMemGetAccess, (unsigned long long *out, const struct access *location, uint64_t address),
        (out, location, address))
{
    struct sim_region *region = sim_region_find(address);
    if (out == NULL || location == NULL || region == NULL || region->kind != SIM_MAPPED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = region->access;
    return CUDA_SUCCESS;
}
