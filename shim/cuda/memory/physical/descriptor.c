/*
 * Descriptors of physical memory that this process has exported. No call shows when one is closed.
 * So they are checked: does the same number still lead to the same file?
 */
#include <sys/stat.h>

#include "entry/shim.h"
#include "memory/account.h"
#include "memory/physical/descriptor.h"

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
    return cgpu_account_find(CGPU_KIND_PHYSICAL, allocation, &holding);
}

bool
cgpu_descriptor_is_open(uint64_t allocation)
{
    for (uint32_t i = 0; i < kinds()->export_bound; i++) {
        if (kinds()->exports[i].allocation == allocation && is_open(&kinds()->exports[i])) {
            return true;
        }
    }
    return false;
}

uint64_t
cgpu_descriptor_forget(int fd)
{
    for (uint32_t i = 0; i < kinds()->export_bound; i++) {
        uint64_t allocation = kinds()->exports[i].allocation;
        if (allocation != 0 && kinds()->exports[i].fd == fd) {
            kinds()->exports[i].allocation = 0;
            return allocation;
        }
    }
    return 0;
}

/* A free entry, or one whose allocation is gone; NULL: there is none. */
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

/*
 * Record that FD keeps ALLOCATION alive. If the table is full, the charge is given back with the
 * last handle.
 */
void
cgpu_descriptor_remember(int fd, uint64_t allocation)
{
    struct cgpu_export exported;
    struct cgpu_export *entry = free_entry();
    if (entry != NULL && identify(fd, &exported)) {
        exported.allocation = allocation;
        *entry = exported;
    }
}

/* The allocation that descriptor FD was made from in this process; 0: none. */
uint64_t
cgpu_descriptor_allocation(int fd)
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
