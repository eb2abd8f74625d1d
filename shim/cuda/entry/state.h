/* This process's part in the container. */
#ifndef CGPU_CUDA_STATE_H
#define CGPU_CUDA_STATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "entry/kinds.h"
#include "holdings/blocks.h"
#include "holdings/holdings.h"
#include "ledger/ledger.h"
#include "limits.h"

enum {
    CGPU_MAX_DEVICES = 64,
    CGPU_NO_GPU = -1,
    CGPU_MAX_LISTED = 128 /* contexts of one process: each costs 100 MiB and more */
};

/* State that reads as zeros in a forked child, where nothing is attached. */
struct cgpu_state {
    pthread_mutex_t lock;     /* attaching, and filling `devices` */
    pthread_mutex_t contexts; /* held to make and destroy contexts, which waits for their work */
    pthread_mutex_t growth;   /* what contexts grow by, except for their limits; only the locks
                                 of a charge are taken under it */
    uint32_t attached;        /* set last; 0: refuse */
    uint32_t generation;      /* of contexts; a change makes void what threads remember of theirs */
    int64_t clock_ahead;      /* of the host: cgpu_host_clock_ahead, in force when attached */
    struct cgpu_ledger *ledger;
    struct cgpu_holdings *holdings;
    struct cgpu_blocks *blocks;
    uint64_t granularity[CGPU_MAX_GPUS]; /* of memory, a block or more; by number in the limits */
    CUcontext primary[CGPU_MAX_GPUS];    /* active primary context, by number in the limits */
    int8_t devices[CGPU_MAX_DEVICES]; /* 0: not asked yet, -1: not in the limits, else number + 1 */
    uint64_t local_bytes; /* the most local memory per thread that a library's kernel needs */
    struct cgpu_kinds kinds;
};

extern struct cgpu_state *cgpu_state;         /* NULL: could not be set up */
extern const struct cgpu_limits *cgpu_limits; /* NULL: missing or broken */

/* Map the limits and make the state: once, when the library is loaded. */
void cgpu_state_setup(void);

/*
 * Attach: take a ledger slot and set up holdings. For cuInit, in a forked child too. NOT_PERMITTED:
 * that failed.
 */
CUresult cgpu_state_attach(void);

/* Whether this process is attached: one load. */
bool cgpu_state_is_attached(void);

#endif
