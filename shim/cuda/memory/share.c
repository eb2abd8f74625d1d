/*
 * Exported and imported physical memory.
 *
 * The process that made the memory pays for it once, as long as it holds it in any way, including
 * an open descriptor made by exporting. We are not informed when a descriptor is closed. So
 * descriptors are checked when the other references are gone, at later calls and before a refusal:
 * the same number must still be the same file. Importing such a descriptor in this process is one
 * more reference; any other import is another process's memory.
 */
#include <sys/stat.h>

#include "entry/shim.h"
#include "memory/charge.h"
#include "memory/physical.h"
#include "memory/share.h"

static struct cgpu_kinds *
kinds(void)
{
    return &cgpu_state->kinds;
}

static bool
identify(int fd, struct cgpu_export *out)
{
    struct stat file;
    if (fstat(fd, &file) != 0) {
        return false;
    }
    *out = (struct cgpu_export){
        .device = (uint64_t)file.st_dev,
        .inode = (uint64_t)file.st_ino,
        .special = (uint64_t)file.st_rdev,
        .fd = fd,
    };
    return true;
}

static bool
is_open(const struct cgpu_export *entry)
{
    struct cgpu_export now;
    return identify(entry->fd, &now) && now.device == entry->device && now.inode == entry->inode &&
           now.special == entry->special;
}

static bool
is_held(uint64_t allocation)
{
    struct cgpu_holding holding;
    return cgpu_charge_find(CGPU_KIND_PHYSICAL, allocation, &holding);
}

bool
cgpu_share_is_open(uint64_t allocation)
{
    for (uint32_t i = 0; i < kinds()->export_bound; i++) {
        if (kinds()->exports[i].allocation == allocation && is_open(&kinds()->exports[i])) {
            return true;
        }
    }
    return false;
}

/* A descriptor with number FD was just made: an older one of that number is closed. */
static void
close_older(int fd)
{
    for (uint32_t i = 0; i < kinds()->export_bound; i++) {
        uint64_t allocation = kinds()->exports[i].allocation;
        if (allocation != 0 && kinds()->exports[i].fd == fd) {
            kinds()->exports[i].allocation = 0;
            cgpu_physical_collect_one(allocation);
        }
    }
}

/* An entry that is free, or whose allocation is gone; NULL: none. */
static struct cgpu_export *
free_entry(void)
{
    for (uint32_t i = 0; i < CGPU_MAX_EXPORTS; i++) {
        struct cgpu_export *entry = &kinds()->exports[i];
        if (entry->allocation == 0 || !is_held(entry->allocation)) {
            kinds()->export_bound = i < kinds()->export_bound ? kinds()->export_bound : i + 1;
            return entry;
        }
    }
    return NULL;
}

/* FD keeps ALLOCATION alive. If there is no room to write that down, the charge goes with the last
 * handle. */
static void
remember(int fd, uint64_t allocation)
{
    struct cgpu_export exported;
    close_older(fd);
    struct cgpu_export *entry = free_entry();
    if (entry != NULL && identify(fd, &exported)) {
        exported.allocation = allocation;
        *entry = exported;
    }
}

CUresult
cgpu_share_export(CUresult (*real)(void *, CUmemGenericAllocationHandle, int, uint64_t), void *out,
                  CUmemGenericAllocationHandle handle, int type, uint64_t flags)
{
    if (!cgpu_state_is_attached()) {
        return real(out, handle, type, flags);
    }
    pthread_mutex_lock(&kinds()->physical);
    CUresult status = real(out, handle, type, flags);
    uint64_t allocation = cgpu_physical_of(handle);
    if (status == CUDA_SUCCESS && out != NULL && is_held(allocation)) {
        cgpu_physical_export(allocation);
        if (type == CU_HANDLE_POSIX_FD) {
            remember(*(const int *)out, allocation);
        }
    }
    pthread_mutex_unlock(&kinds()->physical);
    return status;
}

/* The allocation that descriptor FD was made from in this process; 0: none. */
static uint64_t
exported_here(int fd)
{
    for (uint32_t i = 0; i < kinds()->export_bound; i++) {
        struct cgpu_export *entry = &kinds()->exports[i];
        if (entry->allocation != 0 && entry->fd == fd && is_held(entry->allocation) &&
            is_open(entry)) {
            return entry->allocation;
        }
    }
    return 0;
}

/* HANDLE has come through a descriptor of ALLOCATION; 0: of another process's. */
static CUresult
imported(CUmemGenericAllocationHandle handle, uint64_t allocation)
{
    if (allocation == 0) {
        return cgpu_physical_import(handle);
    }
    return cgpu_physical_alias(handle, allocation) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult
cgpu_share_import(CUresult (*real)(CUmemGenericAllocationHandle *, void *, int),
                  CUmemGenericAllocationHandle *handle, void *shared, int type)
{
    if (!cgpu_state_is_attached()) {
        return real(handle, shared, type);
    }
    if (type > CU_HANDLE_FABRIC) {
        return cgpu_reject(CGPU_REJECT_UNKNOWN, "cuMemImportFromShareableHandle");
    }
    pthread_mutex_lock(&kinds()->physical);
    CUresult status = real(handle, shared, type);
    /* others may come from other machines */
    if (status == CUDA_SUCCESS && handle != NULL && type == CU_HANDLE_POSIX_FD) {
        status = imported(*handle, exported_here((int)(intptr_t)shared));
        if (status != CUDA_SUCCESS) {
            cgpu_real.cuMemRelease(*handle);
        }
    }
    pthread_mutex_unlock(&kinds()->physical);
    return status;
}
