/*
 * Descriptors that a forked child must not keep: see inheritance.h.
 *
 * The program may have closed the number and opened something else under it, so a descriptor is
 * compared with the file that was registered before it is touched.
 */
#define _GNU_SOURCE 1

#include "ledger/inheritance.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * The function behind pthread_atfork in the GNU C library; pthread_atfork itself is a dynamic
 * symbol only in some versions of it. Weak: other C libraries have neither, and then nothing is
 * registered.
 */
int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *dso)
    __attribute__((weak));
/* Names us, so that the handler is forgotten when we are unloaded. */
extern void *__dso_handle __attribute__((visibility("hidden")));

enum { ENTRIES = 8, FREE = 0, FILLING, FULL };

static struct entry {
    int state;
    int fd;
    dev_t device;
    ino_t inode;
} entries[ENTRIES];

static bool
same_file(const struct entry *entry)
{
    struct stat found;

    return fstat(entry->fd, &found) == 0 && found.st_dev == entry->device &&
           found.st_ino == entry->inode;
}

static void
empty(struct entry *entry)
{
    if (same_file(entry)) {
        close(entry->fd);
    }
    __atomic_store_n(&entry->state, FREE, __ATOMIC_RELEASE); /* after the last use of it */
}

static void
close_all_in_child(void)
{
    for (int i = 0; i < ENTRIES; i++) {
        if (entries[i].state == FULL) {
            empty(&entries[i]);
        }
    }
}

static bool
registered(void)
{
    static int done;
    int expected = 0;

    return !__atomic_compare_exchange_n(&done, &expected, 1, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED) ||
           __register_atfork(NULL, NULL, close_all_in_child, &__dso_handle) == 0;
}

int
cgpu_inheritance_refuse(int fd)
{
    struct stat found;

    if (__register_atfork == NULL || !registered() || fstat(fd, &found) != 0) {
        return -1;
    }
    for (int i = 0; i < ENTRIES; i++) {
        int expected = FREE;

        if (__atomic_compare_exchange_n(&entries[i].state, &expected, FILLING, false,
                                        __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
            entries[i].fd = fd;
            entries[i].device = found.st_dev;
            entries[i].inode = found.st_ino;
            __atomic_store_n(&entries[i].state, FULL, __ATOMIC_RELEASE);
            return 0;
        }
    }
    return -1;
}

void
cgpu_inheritance_close(int fd)
{
    for (int i = 0; i < ENTRIES; i++) {
        if (__atomic_load_n(&entries[i].state, __ATOMIC_ACQUIRE) == FULL && entries[i].fd == fd) {
            empty(&entries[i]);
            return;
        }
    }
}
