/*
 * The ledger file: what the processes of one container and the host's tools read and write.
 *
 * The container can overwrite everything here at any time. Its own processes limit every index and
 * loop by the constants below. The host copies the file with pread and never maps it, because a
 * container may truncate it.
 */
#ifndef CGPU_LEDGER_FILE_H
#define CGPU_LEDGER_FILE_H

#include <stdint.h>

#include "limits.h"

/* cffi: begin */
enum {
    CGPU_LEDGER_MAGIC = 0x44454c43, /* the bytes "CLED" */
    CGPU_LEDGER_VERSION = 2,
    CGPU_LEDGER_SLOTS = 1024,
    CGPU_LEDGER_WORKS = 512,   /* pairs of a process and a GPU that it launches on */
    CGPU_LEDGER_PERMITS = 2,   /* how many processes may have work in flight while others wait */
    CGPU_LEDGER_SHARINGS = 256 /* works with this number or more are struct cgpu_ledger_sharing */
};

struct cgpu_ledger_gpu {
    uint32_t lock;       /* 0: free; else the holder's word, see lock.h */
    uint32_t bell;       /* futex word: incremented to wake the arbiter; see work.h */
    uint64_t used;       /* sum over the taken slots; written under the lock */
    uint64_t refused;    /* requests that did not fit */
    uint64_t stalls;     /* times that work stalled: no end for a second */
    uint64_t stalled_ns; /* ns for which such work was stalled, of what has ended */
    uint64_t permits[CGPU_LEDGER_PERMITS]; /* until when each is taken, see gate/permits.h */
    uint64_t queued_ns; /* when a process last found no free permit; 0: none queues */
    uint32_t freed;     /* futex word: incremented when a permit is given back */
    uint32_t reserved0;
    uint64_t reserved[7];
};

struct cgpu_ledger_slot {
    uint32_t taken;      /* 1 while a process has it */
    uint32_t generation; /* incremented at each attach, so that stale lock words are known */
    uint32_t pid;
    uint32_t reserved0;
    uint64_t reserved[6];
    uint64_t used[CGPU_MAX_GPUS]; /* each written under that GPU's lock */
};

enum {
    CGPU_IDLE_NOW = 1, /* all that was launched has ended */
    CGPU_IDLE_SOON = 2 /* all is about to end, and then the program will rest (gate/sync.h) */
};

/*
 * What one process does on one GPU, for the arbiter. It has a cache line of its own, which only
 * that process writes. All times are CLOCK_MONOTONIC of the host, in ns.
 */
struct cgpu_ledger_work {
    uint32_t owner;    /* slot + 1 and generation, as in a lock word; 0: free */
    uint32_t gpu;      /* number in the limits */
    uint32_t active;   /* gate word under which it launched since it was last quiet; 0: quiet */
    uint32_t waiting;  /* threads that wait at the closed gate */
    uint32_t idle;     /* although it is active: CGPU_IDLE_NOW, CGPU_IDLE_SOON; 0: neither */
    uint32_t certain;  /* end_ns rests on measured kernels only */
    uint64_t end_ns;   /* when what is in flight is expected to end */
    uint64_t busy_ns;  /* GPU time of all that has ended, as measured */
    uint64_t begun_ns; /* the process launched nothing before this time since it was last quiet */
    uint32_t markers;  /* written so far */
    uint32_t done_us;  /* GPU time of all that has ended, as estimated; modulo 2^32 */
    uint32_t missed;   /* turns that ended before the thread that waited for them ran */
    uint32_t lag_ns;   /* from a launch until its end is seen, less its work (pace.h); 0: unknown */
};

/*
 * An entry of the table of works that counts GPU memory which the process shares with others: see
 * sharing.h.
 */
struct cgpu_ledger_sharing {
    uint32_t owner;    /* as in a work */
    uint32_t gpu;      /* CGPU_LEDGER_SHARINGS + the number in the limits */
    uint64_t exported; /* bytes that are charged to this process; written under the GPU's lock */
    uint64_t imported; /* bytes mapped; the same memory counts once, as far as known */
    uint64_t due;      /* the part of them that is charged to this process */
    uint64_t mapped;   /* bytes of all imports; memory that was imported twice counts twice */
    uint64_t beside;   /* while due changes: 1 + what the slot holds besides due; else 0 */
    uint64_t reserved[2];
};

struct cgpu_ledger_file {
    uint32_t magic;
    uint32_t version;
    uint32_t size;       /* sizeof(struct cgpu_ledger_file) of the writer */
    uint32_t slot_bound; /* no slot from here on was ever taken */
    uint64_t reaped_ms;  /* CLOCK_MONOTONIC when dead slots were last looked for */
    uint32_t work_bound; /* no work from here on was ever claimed */
    uint32_t reserved0;
    uint64_t reserved[12];
    struct cgpu_ledger_gpu gpus[CGPU_MAX_GPUS];
    struct cgpu_ledger_work works[CGPU_LEDGER_WORKS];
    struct cgpu_ledger_slot slots[CGPU_LEDGER_SLOTS];
};
/* cffi: end */

/*
 * Open-file-description locks on the file's bytes, which the kernel drops when a process dies. A
 * lock on byte N shows that the process of slot N lives. A lock on the byte after the last slot's
 * shows that a process is reaping.
 */
enum { CGPU_LEDGER_REAPER_BYTE = CGPU_LEDGER_SLOTS };

#endif
