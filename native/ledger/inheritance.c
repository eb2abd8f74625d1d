/*
 * Descriptors that a forked child must not keep: see inheritance.h.
 *
 * The program may have closed the descriptor and opened something else with its number. So before a
 * descriptor is touched, its file is compared with the one that was registered.
 */
#define _GNU_SOURCE 1

#include "ledger/inheritance.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * The function behind pthread_atfork in the GNU C library, of which only some versions export
 * pthread_atfork itself. Weak: other C libraries have neither, and then no handler is registered.
 */
int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *dso)
    __attribute__((weak));
/* The handle of this library, by which its handler is forgotten when the library is unloaded. */
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
