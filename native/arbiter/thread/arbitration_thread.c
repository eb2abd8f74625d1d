/*
 * The arbitration thread of one or more GPUs: it samples the containers, decides, stores the gates,
 * and sleeps.
 *
 * It closes gates first, and reads all containers again before it opens one. A process may have
 * been let in just before its gate was closed; its ledger then shows that.
 */
#define _GNU_SOURCE 1

#include "arbiter/thread/arbitration_thread.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>

#include "clock.h"
#include "futex.h"
#include "gate/fallback.h"
#include "helper_thread.h"
#include "watch.h"

/*
 * How often to check for a dead process while work should have ended: such a process rings no bell.
 */
#define DRAIN_NS UINT64_C(5000000)
/* How often to check if not all bells wake the thread. */
#define POLL_NS UINT64_C(1000000)

enum { ROUNDS = 6, NICE = -10 };

static void
sample(struct cgpu_arbitration_thread *thread, uint64_t now)
{
    memset(thread->demands, 0, thread->group.count * sizeof *thread->demands);
    for (uint32_t g = 0; g < thread->group.count; g++) {
        for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
            struct cgpu_container *container = thread->gpus[g]->containers[i];

            if (container != NULL) {
                cgpu_container_sample(container, now, &thread->demands[g][i]);
            }
        }
    }
}

/* Store the gates that open, or those that close. Returns how many have changed. */
static int
store(struct cgpu_arbitration *arbitration, const enum cgpu_gate *gates, bool opening)
{
    int changed = 0;

    for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
        struct cgpu_container *container = arbitration->containers[i];
        enum cgpu_gate gate = container == NULL || container->broken ? CGPU_GATE_CLOSED : gates[i];
        uint32_t word = container != NULL ? cgpu_container_gate(container) : 0;

        if (container != NULL && !container->broken) {
            cgpu_container_set_metered(container, cgpu_arbiter_metered(arbitration->arbiter, i));
        }
        if (container == NULL || gate == cgpu_gate_state(word) ||
            opening != (gate != CGPU_GATE_CLOSED)) {
            continue;
        }
        arbitration->figures.turns += opening && !cgpu_gate_is_open(word);
        cgpu_container_set_gate(container, gate, cgpu_arbiter_is_quiet(arbitration->arbiter, i));
        changed += 1;
    }
    return changed;
}

static int
store_all(struct cgpu_arbitration_thread *thread, enum cgpu_gate (*gates)[CGPU_MAX_TENANTS],
          bool opening)
{
    int changed = 0;

    for (uint32_t g = 0; g < thread->group.count; g++) {
        changed += store(thread->gpus[g], gates[g], opening);
    }
    return changed;
}

/* Skip the time in which the server was stopped or had no processor: containers ran without it. */
static void
skip_absence(struct cgpu_arbitration_thread *thread, uint64_t now)
{
    for (uint32_t g = 0; g < thread->group.count; g++) {
        if (now - thread->decided_ns > CGPU_FALLBACK_AFTER_NS) {
            cgpu_arbiter_skip(thread->group.gpus[g], now);
        }
        thread->gpus[g]->figures.steps += 1;
    }
    thread->decided_ns = now;
}

/* Run steps until no further gate closes. Returns when to run the next. */
static uint64_t
decide(struct cgpu_arbitration_thread *thread)
{
    enum cgpu_gate gates[CGPU_MAX_GPUS][CGPU_MAX_TENANTS];
    uint64_t next = 0;

    for (int round = 0; round < ROUNDS; round++) {
        uint64_t now = cgpu_clock_now();

        skip_absence(thread, now);
        sample(thread, now);
        next = cgpu_group_step(&thread->group, now, thread->demands, gates);
        thread->allowed_ns = cgpu_budget_spend(&thread->budget, thread->group.count, now);
        /* a gate is stored with a full fence, before the ledgers are read again */
        if (store_all(thread, gates, false) == 0) {
            /* a process that launches from now on rings after its bell was read */
            (void)store_all(thread, gates, true);
            return next;
        }
    }
    return 0;
}

static void
publish_gpu(struct cgpu_arbitration *arbitration, uint64_t now)
{
    for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
        struct cgpu_tenant_report report;

        if (arbitration->containers[i] != NULL) {
            cgpu_arbiter_report(arbitration->arbiter, i, &report);
            cgpu_container_publish(arbitration->containers[i], &report, now);
        }
    }
}

/* Publish the figures, but not at each step: processes read the same cache line at each launch. */
static void
publish(struct cgpu_arbitration_thread *thread, uint64_t now)
{
    if (thread->published_ns != 0 &&
        now - thread->published_ns < CGPU_ARBITRATION_HEARTBEAT_NS / 2) {
        return;
    }
    thread->published_ns = now;
    for (uint32_t g = 0; g < thread->group.count; g++) {
        publish_gpu(thread->gpus[g], now);
    }
}

static bool
somebody_drains(const struct cgpu_arbitration_thread *thread)
{
    for (uint32_t g = 0; g < thread->group.count; g++) {
        for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
            const struct cgpu_container *container = thread->gpus[g]->containers[i];

            if (container != NULL && thread->demands[g][i].active &&
                !cgpu_gate_is_open(cgpu_container_gate(container))) {
                return true;
            }
        }
    }
    return false;
}

/* Whether gates may open: all GPUs of the thread have begun. */
static bool
has_begun(const struct cgpu_arbitration_thread *thread)
{
    for (uint32_t g = 0; g < thread->group.count; g++) {
        if (!thread->gpus[g]->begun) {
            return false;
        }
    }
    return thread->group.count > 0;
}

static bool
add_bells(const struct cgpu_arbitration *arbitration, struct cgpu_watch *watch)
{
    for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
        const struct cgpu_container *container = arbitration->containers[i];

        if (container != NULL && !container->broken &&
            !cgpu_watch_add(watch, cgpu_container_bell(container), container->bell, false)) {
            return false;
        }
    }
    return true;
}

/* Add the bells of all containers to WATCH. False: the kernel cannot wait for all of them. */
static bool
add_all_bells(const struct cgpu_arbitration_thread *thread, struct cgpu_watch *watch)
{
    bool all = !thread->cannot_watch;

    for (uint32_t g = 0; all && g < thread->group.count; g++) {
        all = add_bells(thread->gpus[g], watch);
    }
    return all;
}

/*
 * When to wake up if nobody rings. NEXT: when the next step is due; POLLING: not all bells wake the
 * thread.
 */
static uint64_t
wake_time(const struct cgpu_arbitration_thread *thread, uint64_t next, uint64_t now, bool polling)
{
    uint32_t tenants = 0;

    for (uint32_t g = 0; g < thread->group.count; g++) {
        tenants += thread->gpus[g]->figures.tenants;
    }
    if (tenants == 0 || !has_begun(thread)) {
        return UINT64_MAX;
    }
    next = cgpu_lesser(next, thread->published_ns + CGPU_ARBITRATION_HEARTBEAT_NS);
    if (somebody_drains(thread)) {
        next = cgpu_lesser(next, now + DRAIN_NS);
    }
    if (polling && tenants > 1) {
        next = cgpu_lesser(next, now + POLL_NS);
    }
    return next;
}

/* Sleep. The caller holds the mutex, which is given up while the thread sleeps. */
static void
rest(struct cgpu_arbitration_thread *thread, uint64_t next)
{
    uint64_t now = cgpu_clock_now();
    struct cgpu_watch watch = {.count = 0};
    uint64_t until;
    bool could, polling;

    (void)cgpu_watch_add(&watch, &thread->control, thread->control, true);
    if (thread->allowed_ns > now) {
        until = thread->allowed_ns; /* a ring before then is seen then */
    } else {
        /*
         * until all containers are added, nobody reads the bells, so old rings would wake the
         * thread
         */
        polling = has_begun(thread) && !add_all_bells(thread, &watch);
        until = wake_time(thread, next, now, polling);
    }
    pthread_mutex_unlock(&thread->mutex);
    could = cgpu_watch_sleep(&watch, until);
    pthread_mutex_lock(&thread->mutex);
    thread->cannot_watch = thread->cannot_watch || !could;
}

static void *
run(void *argument)
{
    struct cgpu_arbitration_thread *thread = argument;

    prctl(PR_SET_NAME, "cgpu-arbiter");
    prctl(PR_SET_TIMERSLACK, 1); /* else every sleep may be 50 us longer */
    /*
     * Raise the thread's priority, because a GPU waits while this thread waits for a processor.
     * Without permission for that, the thread keeps its priority.
     */
    (void)setpriority(PRIO_PROCESS, 0, NICE);
    pthread_mutex_lock(&thread->mutex);
    while (!thread->stopping) {
        uint64_t next = UINT64_MAX;

        if (has_begun(thread)) {
            next = decide(thread);
            publish(thread, cgpu_clock_now());
        }
        rest(thread, next);
    }
    pthread_mutex_unlock(&thread->mutex);
    return NULL;
}

struct cgpu_arbitration_thread *
cgpu_arbitration_thread_start(void)
{
    struct cgpu_arbitration_thread *thread = calloc(1, sizeof *thread);
    int error;

    if (thread == NULL) {
        return NULL;
    }
    pthread_mutex_init(&thread->mutex, NULL);
    error = cgpu_helper_thread_start(run, thread, &thread->thread);
    if (error != 0) {
        pthread_mutex_destroy(&thread->mutex);
        free(thread);
        errno = error;
        return NULL;
    }
    return thread;
}

void
cgpu_arbitration_thread_announce(struct cgpu_arbitration_thread *thread)
{
    thread->published_ns = 0;
    /* relaxed: the mutex protects what has changed */
    __atomic_add_fetch(&thread->control, 1, __ATOMIC_RELAXED);
    cgpu_futex_wake(&thread->control, FUTEX_WAKE_PRIVATE, INT_MAX);
}

void
cgpu_arbitration_thread_stop(struct cgpu_arbitration_thread *thread)
{
    pthread_mutex_lock(&thread->mutex);
    thread->stopping = true;
    cgpu_arbitration_thread_announce(thread);
    pthread_mutex_unlock(&thread->mutex);
    pthread_join(thread->thread, NULL);
    pthread_mutex_destroy(&thread->mutex);
    free(thread);
}

void
cgpu_arbitration_thread_account(struct cgpu_arbitration_thread *thread)
{
    struct timespec used = {0};
    clockid_t clock;
    uint64_t ns;

    if (pthread_getcpuclockid(thread->thread, &clock) != 0 || clock_gettime(clock, &used) != 0) {
        return;
    }
    ns = cgpu_clock_ns(&used);
    for (uint32_t g = 0; g < thread->group.count; g++) {
        thread->gpus[g]->figures.cpu_ns += (ns - thread->accounted_ns) / thread->group.count;
    }
    thread->accounted_ns = ns;
}
