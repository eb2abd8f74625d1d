/* The thread behind arbitration.h, and what it shares with the callers. */
#ifndef CGPU_ARBITRATION_THREAD_H
#define CGPU_ARBITRATION_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "arbiter/arbiter.h"
#include "arbiter/budget.h"
#include "arbiter/group/group.h"
#include "arbiter/thread/arbitration.h"
#include "arbiter/thread/container.h"

/*
 * How often to write the heartbeat. A process takes an arbiter without one for gone after
 * CGPU_FALLBACK_AFTER_NS.
 */
#define CGPU_ARBITRATION_HEARTBEAT_NS UINT64_C(50000000)

/* One GPU. */
struct cgpu_arbitration {
    struct cgpu_arbitration_thread *thread; /* its mutex protects everything below */
    uint32_t next_key;
    bool begun; /* all containers that ran already have been added */
    struct cgpu_arbitration_figures figures;
    struct cgpu_arbiter *arbiter;
    struct cgpu_container *containers[CGPU_MAX_TENANTS]; /* by index in the arbiter; NULL: none */
};

/* The thread of one GPU, or of some that take turns together. */
struct cgpu_arbitration_thread {
    pthread_mutex_t mutex; /* of everything below; the thread sleeps without it */
    pthread_t thread;
    uint32_t control; /* futex word: one more whenever a caller has changed something */
    bool stopping;
    bool cannot_watch;     /* an old kernel: poll the ledgers instead */
    uint64_t published_ns; /* 0: publish everything anew */
    uint64_t decided_ns;
    uint64_t accounted_ns; /* CPU time that figures already contain */
    struct cgpu_budget budget;
    uint64_t allowed_ns; /* no step before then, whoever rings */
    struct cgpu_group group;
    struct cgpu_arbitration *gpus[CGPU_MAX_GPUS]; /* in the group's order */
    struct cgpu_demand demands[CGPU_MAX_GPUS][CGPU_MAX_TENANTS];
};

/* Start a thread, which has no GPU yet. NULL and errno if no thread can be created. */
struct cgpu_arbitration_thread *cgpu_arbitration_thread_start(void);
/* Stop the thread. It must have no GPU any more. */
void cgpu_arbitration_thread_stop(struct cgpu_arbitration_thread *thread);
/* Make the thread run a step at once. The caller holds the mutex and has changed something. */
void cgpu_arbitration_thread_announce(struct cgpu_arbitration_thread *thread);
/* Add the thread's CPU time since the last call to the figures of its GPUs. */
void cgpu_arbitration_thread_account(struct cgpu_arbitration_thread *thread);

#endif
