/*
 * The arbitration thread: look, decide, store the gates, sleep.
 *
 * Gates are closed first and everybody is looked at again before another one is opened: a process
 * may have been let in just before its gate was closed, and then it says so in its ledger.
 */
#define _GNU_SOURCE 1

#include "arbitration_thread.h"

#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>

#include "fallback.h"
#include "watch.h"

#define NS_PER_SECOND UINT64_C(1000000000)
/* A process that should be done may be dead, which rings no bell. */
#define DRAIN_NS UINT64_C(5000000)
/* Without bells, with two containers and with one. */
#define POLL_NS UINT64_C(1000000)

enum { ROUNDS = 6, NICE = -10 };

uint64_t
cgpu_arbitration_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS_PER_SECOND + (uint64_t)now.tv_nsec;
}

static uint64_t
lesser(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void
look(struct cgpu_arbitration *arbitration, uint64_t now)
{
    for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
        arbitration->demands[i] = (struct cgpu_demand){0};
        if (arbitration->containers[i] != NULL) {
            cgpu_container_look(arbitration->containers[i], now, &arbitration->demands[i]);
        }
    }
}

/* Store the gates that open, or those that close; how many have changed. */
static int
store(struct cgpu_arbitration *arbitration, const enum cgpu_gate *gates, bool opening)
{
    int changed = 0;

    for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
        struct cgpu_container *container = arbitration->containers[i];
        enum cgpu_gate gate = container == NULL || container->broken ? CGPU_GATE_CLOSED : gates[i];
        uint32_t word = container != NULL ? cgpu_container_gate(container) : 0;

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

/* The server was stopped, or starved, for so long that containers have gone on by themselves. */
static void
skip_absence(struct cgpu_arbitration *arbitration, uint64_t now)
{
    if (now - arbitration->decided_ns > CGPU_FALLBACK_AFTER_NS) {
        cgpu_arbiter_skip(arbitration->arbiter, now);
    }
    arbitration->decided_ns = now;
}

/* Until no gate closes any more; when to look again. */
static uint64_t
decide(struct cgpu_arbitration *arbitration)
{
    enum cgpu_gate gates[CGPU_MAX_TENANTS];
    uint64_t next = 0;

    for (int round = 0; round < ROUNDS; round++) {
        uint64_t now = cgpu_arbitration_now();

        skip_absence(arbitration, now);
        look(arbitration, now);
        memset(gates, 0, sizeof gates);
        next = cgpu_arbiter_step(arbitration->arbiter, now, arbitration->demands, gates);
        arbitration->figures.steps += 1;
        arbitration->allowed_ns = cgpu_budget_spend(&arbitration->budget, now);
        /* a gate is stored with a full fence, before the ledgers are read again */
        if (store(arbitration, gates, false) == 0) {
            /* whoever comes in now rings after the bells were read */
            (void)store(arbitration, gates, true);
            return next;
        }
    }
    return 0;
}

/* Not at every look: processes read the same cache line with every launch. */
static void
publish(struct cgpu_arbitration *arbitration, uint64_t now)
{
    if (arbitration->published_ns != 0 &&
        now - arbitration->published_ns < CGPU_ARBITRATION_HEARTBEAT_NS / 2) {
        return;
    }
    arbitration->published_ns = now;
    for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
        struct cgpu_tenant_report report;

        if (arbitration->containers[i] != NULL) {
            cgpu_arbiter_report(arbitration->arbiter, i, &report);
            cgpu_container_publish(arbitration->containers[i], &report, now);
        }
    }
}

static bool
somebody_drains(const struct cgpu_arbitration *arbitration)
{
    for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
        if (arbitration->containers[i] != NULL && arbitration->demands[i].active &&
            !cgpu_gate_is_open(cgpu_container_gate(arbitration->containers[i]))) {
            return true;
        }
    }
    return false;
}

/* When to wake up if nobody rings, for an arbiter that wants to look at NEXT. */
static uint64_t
wake_time(const struct cgpu_arbitration *arbitration, uint64_t next, uint64_t now)
{
    if (arbitration->figures.tenants == 0) {
        return UINT64_MAX;
    }
    if (now < arbitration->settled_ns) {
        return arbitration->settled_ns;
    }
    next = lesser(next, arbitration->published_ns + CGPU_ARBITRATION_HEARTBEAT_NS);
    if (somebody_drains(arbitration)) {
        next = lesser(next, now + DRAIN_NS);
    }
    if (arbitration->cannot_watch && arbitration->figures.tenants > 1) {
        next = lesser(next, now + POLL_NS);
    }
    return next;
}

static void
add_bells(const struct cgpu_arbitration *arbitration, struct cgpu_watch *watch)
{
    for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
        const struct cgpu_container *container = arbitration->containers[i];

        if (container != NULL && !container->broken) {
            cgpu_watch_add(watch, cgpu_container_bell(container), container->bell, false);
        }
    }
}

/* Called with the mutex, which it gives up while it sleeps. */
static void
rest(struct cgpu_arbitration *arbitration, uint64_t next)
{
    uint64_t now = cgpu_arbitration_now();
    uint64_t until = wake_time(arbitration, next, now);
    struct cgpu_watch watch = {.count = 0};
    uint32_t control = arbitration->control;
    bool watching = !arbitration->cannot_watch;
    bool could = true;

    cgpu_watch_add(&watch, &arbitration->control, control, true);
    if (arbitration->allowed_ns > now) {
        until = until > arbitration->allowed_ns ? until : arbitration->allowed_ns;
    } else {
        add_bells(arbitration, &watch);
    }
    pthread_mutex_unlock(&arbitration->mutex);
    if (watching) {
        could = cgpu_watch_sleep(&watch, until);
    } else {
        cgpu_watch_sleep_on(&arbitration->control, control, until);
    }
    pthread_mutex_lock(&arbitration->mutex);
    arbitration->cannot_watch = arbitration->cannot_watch || !could;
}

void *
cgpu_arbitration_run(void *argument)
{
    struct cgpu_arbitration *arbitration = argument;

    prctl(PR_SET_NAME, "cgpu-arbiter");
    prctl(PR_SET_TIMERSLACK, 1); /* else every sleep may be 50 us longer */
    /* of the thread: while it waits for a processor, so does a GPU. Who may not, goes without */
    (void)setpriority(PRIO_PROCESS, 0, NICE);
    pthread_mutex_lock(&arbitration->mutex);
    while (!arbitration->stopping) {
        uint64_t next = 0;

        if (cgpu_arbitration_now() >= arbitration->settled_ns) {
            next = decide(arbitration);
            publish(arbitration, cgpu_arbitration_now());
        }
        rest(arbitration, next);
    }
    pthread_mutex_unlock(&arbitration->mutex);
    return NULL;
}
