/* The thread behind arbitration.h, and what it shares with the callers. */
#ifndef CGPU_ARBITRATION_THREAD_H
#define CGPU_ARBITRATION_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "arbiter.h"
#include "arbitration.h"
#include "budget.h"
#include "container.h"

/* How fresh the sign of life is: see CGPU_FALLBACK_AFTER_NS. */
#define CGPU_ARBITRATION_HEARTBEAT_NS UINT64_C(50000000)
/*
 * From the first container on, nothing is opened for so long: the server adds the others that run
 * already, which an earlier arbiter may have let in.
 */
#define CGPU_ARBITRATION_SETTLE_NS UINT64_C(20000000)

struct cgpu_arbitration {
    pthread_mutex_t mutex; /* of everything below; the thread sleeps without it */
    pthread_t thread;
    uint32_t control; /* futex word: one more whenever a caller has changed something */
    bool stopping;
    bool cannot_watch; /* an old kernel: look at the ledgers every now and then instead */
    uint32_t next_key;
    uint64_t settled_ns;   /* 0: no container has come yet */
    uint64_t published_ns; /* 0: say all anew */
    uint64_t decided_ns;
    struct cgpu_budget budget;
    uint64_t allowed_ns; /* not to look before, whoever rings */
    struct cgpu_arbitration_figures figures;
    struct cgpu_arbiter *arbiter;
    struct cgpu_container *containers[CGPU_MAX_TENANTS]; /* by the arbiter's place; NULL: none */
    struct cgpu_demand demands[CGPU_MAX_TENANTS];
};

/* CLOCK_MONOTONIC, in ns. */
uint64_t cgpu_arbitration_now(void);

void *cgpu_arbitration_run(void *arbitration);

#endif
