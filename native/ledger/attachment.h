/* One process's attachment to a ledger; private to ledger.c, lock.c, slot.c and observer.c. */
#ifndef CGPU_ATTACHMENT_H
#define CGPU_ATTACHMENT_H

#include <linux/limits.h>
#include <stdint.h>
#include <sys/types.h>

#include "ledger/ledger.h"
#include "ledger/ledger_file.h"

/* MADV_WIPEONFORK: a forked child reads zeros, which mean detached. */
struct cgpu_ledger {
    struct cgpu_ledger_file *file; /* NULL: detached, or an observer */
    uint32_t slot;
    uint32_t word;      /* what this process writes into a lock that it holds */
    uint32_t observing; /* 1: an observer, which has no slot and no mapping */
    uint32_t reaping;   /* 1: a thread of this process holds the reaper's byte, or tries to */
    int kept; /* descriptor for when the path leads elsewhere, or an observer's only one; 0: none */
    dev_t device;
    ino_t inode;
    uint64_t rests_until; /* CLOCK_MONOTONIC: no questions before; see observer.c */
    char path[PATH_MAX];
};

#endif
